"""What the product never does, whatever it is given: looked for in its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("regress", "benchmarks", "perf", "docker")
PRODUCT = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "telnetlib", "xmlrpc"}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_CALLS = {
    "os.system": "a shell", "os.popen": "a shell", "subprocess.getoutput": "a shell",
    "subprocess.getstatusoutput": "a shell", "yaml.unsafe_load": "any object", "yaml.full_load": "any object",
    "yaml.load_all": "any object", "tempfile.mktemp": "a name that another may take first",
    "torch.load": "pickled objects", "numpy.load": "pickled objects", "np.load": "pickled objects",
    "pandas.read_pickle": "pickled objects", "ssl._create_unverified_context": "any certificate",
    "shutil.unpack_archive": "paths of the archive's choosing"}
FORBIDDEN_OPTIONS = {"shell": True, "verify": False, "allow_pickle": True}


def offences(source: str, name: str) -> Iterator[str]:
    """One line for each thing in a file that must not be there."""
    for node in ast.walk(ast.parse(source)):
        at = f"{name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            yield from (f"{at}: imports {module}" for module in modules
                        if module.partition(".")[0] in FORBIDDEN_IMPORTS)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in FORBIDDEN_NAMES:
            yield f"{at}: {called}()"
        if called in FORBIDDEN_CALLS:
            yield f"{at}: {called}() takes {FORBIDDEN_CALLS[called]}"
        if called in ("yaml.load", "yaml.compose", "yaml.parse") and not any(
                option.arg == "Loader" and ast.unparse(option.value) == "yaml.SafeLoader" for option in node.keywords):
            yield f"{at}: {called}() without SafeLoader"
        yield from (f"{at}: {called}({option.arg}={ast.unparse(option.value)})" for option in node.keywords
                    if _refused(option))


def _refused(option: ast.keyword) -> bool:
    """A forbidden value; for `shell` and `allow_pickle` also one that is only known when it runs."""
    if option.arg not in FORBIDDEN_OPTIONS:
        return False
    if isinstance(option.value, ast.Constant):
        return option.value.value is FORBIDDEN_OPTIONS[option.arg]
    return option.arg != "verify"


def test_nothing_of_it_is_in_the_product() -> None:
    assert len(PRODUCT) > 150
    assert [offence for path in PRODUCT
            for offence in offences(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))] == []


@pytest.mark.parametrize("source", [
    "eval('1')", "exec(text)", "import pickle", "from marshal import loads", "subprocess.run('ls', shell=True)",
    "subprocess.Popen(command, shell=wanted)", "yaml.load(text)", "yaml.load(text, Loader=yaml.Loader)",
    "yaml.load(text, yaml.SafeLoader)", "yaml.unsafe_load(text)", "os.system('ls')", "torch.load(path)",
    "requests.get(url, verify=False)", "np.load(path, allow_pickle=True)", "tempfile.mktemp()"])
def test_the_scan_finds_it(source: str) -> None:
    assert list(offences(source, "made.py")) != []


@pytest.mark.parametrize("source", [
    "torch.compile(model)", "re.compile('a')", "subprocess.run(['ls'], shell=False)", "requests.get(url, verify=ca)",
    "yaml.load(text, Loader=yaml.SafeLoader)", "json.loads(text)"])
def test_the_scan_lets_the_rest_be(source: str) -> None:
    assert list(offences(source, "made.py")) == []


def test_every_sql_statement_with_a_value_binds_it() -> None:
    """f-strings in execute() may hold names of tables and columns only: never what a file or a user says."""
    for path in (path for path in PRODUCT if {"history", "trace"} & set(path.parts)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                    (".execute", ".executemany", ".rows", ".batches")):
                before = [str(part.value) for one in ast.walk(node) if isinstance(one, ast.JoinedStr)
                          for part, following in zip(one.values, one.values[1:], strict=False)
                          if isinstance(part, ast.Constant) and isinstance(following, ast.FormattedValue)]
                assert not any(text.endswith("'") or text.rstrip().endswith("=") for text in before), (
                    f"{path.name}:{node.lineno}")
