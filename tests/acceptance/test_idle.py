"""Installed and not asked for, the plugin costs nothing and says nothing; importing the package loads nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.acceptance.conftest import ROOT

HEAVY = ("torch", "pandas", "numpy", "scipy", "jsonschema", "msgspec", "yaml", "sqlite3", "requests", "rich")


def loaded(program: str) -> list[str]:
    """The modules beyond a bare interpreter's that a program leaves loaded, of ours and of the heavy ones."""
    names = f"[name for name in sys.modules if name.split('.')[0] in {('regress', 'benchmarks', *HEAVY)!r}]"
    done = subprocess.run([sys.executable, "-c", f"import sys\n{program}\nprint(*sorted({names}))"], check=True,
                          capture_output=True, text=True, cwd=ROOT)
    return done.stdout.split()


def test_importing_the_package_loads_nothing_else() -> None:
    assert loaded("import regress") == ["regress"]


def test_the_plugin_idle_loads_itself_and_its_options() -> None:
    assert loaded("import pytest\nimport regress.plugin") == ["regress", "regress.gate_options", "regress.plugin"]


def test_the_console_script_loads_only_what_its_command_needs() -> None:
    assert loaded("import regress.cli") == ["regress", "regress.cli", "regress.errors"]


@pytest.mark.parametrize("arguments", [[], ["-p", "no:terminal"]], ids=["terminal", "no terminal"])
def test_an_idle_session_says_nothing_and_loads_nothing(pytester: pytest.Pytester, arguments: list[str],
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(f"""
        import sys

        def test_nothing_heavy_is_there():
            assert [name for name in {HEAVY!r} if name in sys.modules] == []
            assert {{name for name in sys.modules if name.split(".")[0] == "regress"}} == {{
                "regress", "regress.gate_options", "regress.plugin"}}
    """)
    done = pytester.run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "regress.plugin", *arguments)
    assert done.ret == 0, done.stdout.str()
    assert "comm-regress:" not in done.stdout.str()
    assert not (pytester.path / ".comm-regress").exists()
