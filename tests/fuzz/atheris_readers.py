"""Coverage-guided fuzzing of what reads foreign files: `python -m tests.fuzz.atheris_readers READER SECONDS [FOLDER]`.

Unlike the tests beside it, which damage good files at random, this follows which lines an input reaches. READER is one
of yaml (the loader alone), thresholds (the loader and all checks after it), run, sqlite and kineto; FOLDER keeps the
inputs that reached something new, for a later run to go on from. An input that ends in anything but a named problem is
written to the working folder as `crash-…`, and the status is not 0: such an input becomes a test of the file beside
this one that damages its kind. Needs atheris, which the extra `fuzz` brings.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["regress", "yaml"]):
    from tests.fuzz import test_runs, test_traces, test_yaml

from regress.errors import ConfigError
from regress.history.runs import RunFiles
from regress.yaml_source import read_yaml
from tests.fuzz.hostile import ODD_JSON
from tests.fuzz.test_traces import KEYS
from tests.trace.made import kineto, kineto_rank, two_ranks

PATIENCE_SECONDS = 60
MOST_BYTES = {"yaml": 8_000, "thresholds": 8_000, "run": 20_000, "sqlite": 200_000, "kineto": 60_000}
WORDS: dict[str, tuple[str, ...]] = {
    "yaml": test_yaml.PIECES, "thresholds": test_yaml.PIECES, "sqlite": (), "kineto": (*KEYS, *ODD_JSON),
    "run": tuple(part.decode() for part in test_runs.VALUES)}


def _reader(name: str, work: Path) -> tuple[bytes, Callable[[bytes], None]]:
    """A good file, and what reads bytes and lets nothing but a named problem pass: the tests' own entry points."""
    if name == "yaml":
        return test_yaml.GOOD, lambda content: _load(work / "thresholds.yaml", content)
    if name == "thresholds":
        return test_yaml.GOOD, lambda content: test_yaml.read(work, content)
    if name == "run":
        files = RunFiles(work)
        return test_runs.GOOD, lambda content: test_runs.read(files, "a.json", content)
    if name == "sqlite":
        return (two_ranks().write(work / "good.sqlite").read_bytes(),
                lambda content: test_traces.read(work / "d.sqlite", content))
    good = kineto(work / "good.json", kineto_rank(0), distributedInfo={"rank": 0, "world_size": 2})
    return good.read_bytes(), lambda content: test_traces.read(work / "d.json", content)


def _load(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        read_yaml(path)
    except ConfigError as error:
        assert str(path) in error.text


def _dictionary(path: Path, words: tuple[str, ...]) -> list[str]:
    """libFuzzer's option for words to put into inputs."""
    if not words:
        return []
    lines = ['"' + "".join(f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogatepass")) + '"'
             for word in words if 0 < len(word) < 64]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
    return [f"-dict={path}"]


def main() -> None:
    """Fuzzes one reader; ends the process, as libFuzzer does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", choices=MOST_BYTES)
    parser.add_argument("seconds", type=int)
    parser.add_argument("folder", type=Path, nargs="?")
    asked = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="comm-regress-fuzz-"))
    corpus = asked.folder or work / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    good, read = _reader(asked.reader, work)
    (corpus / "good").write_bytes(good)
    # Where CI is set the same inputs are tried each time, and only what is found is printed.
    always = ["-seed=1", "-verbosity=0"] if os.environ.get("CI") else ["-print_final_stats=1"]
    atheris.Setup([sys.argv[0], str(corpus), f"-max_total_time={asked.seconds}", f"-max_len={MOST_BYTES[asked.reader]}",
                   f"-timeout={PATIENCE_SECONDS}", "-rss_limit_mb=4096", *always,
                   *_dictionary(work / "words", WORDS[asked.reader])], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
