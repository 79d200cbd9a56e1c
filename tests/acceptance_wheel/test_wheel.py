"""The built wheel in a fresh virtual environment, in an empty folder: nothing of the checkout may be needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.gate import ALLREDUCE, INJECT, ROOT, Place


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment that has the wheel; its dependencies are those of the environment the tests run in."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
        return subprocess.run([str(self.folder / "bin" / command[0]), *command[1:]], cwd=cwd, env=environment,
                              capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
                   check=True, capture_output=True)
    (wheel,) = folder.glob("comm_regress-*.whl")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    subprocess.run([sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install", "-q", "--no-deps",
                    "--no-index", str(wheel)], check=True, capture_output=True)
    # Links inside a folder that a .pth names are not followed, so an editable install of ours stays out of the way.
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n" + sysconfig.get_path("platlib") + "\n")
    return Installed(venv)


def test_the_wheel_brings_everything(installed: Installed, tmp_path: Path) -> None:
    code = ("import json, regress.config as config, benchmarks; print(json.dumps([config.__file__, benchmarks.__file__,"
            " config.packaged_thresholds().read_text()]))")
    done = installed.run("python", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config, benchmarks, thresholds = json.loads(done.stdout)
    assert config.startswith(str(installed.folder))
    assert benchmarks.startswith(str(installed.folder))
    assert thresholds == (ROOT / "thresholds.yaml").read_text()


def test_the_console_script(installed: Installed, tmp_path: Path) -> None:
    said = installed.run("regress", "--version", cwd=tmp_path)
    assert said.returncode == 0
    assert f'__version__ = "{said.stdout.removeprefix("comm-regress ").strip()}"' in \
        (ROOT / "regress" / "__init__.py").read_text()
    listed = installed.run("regress", "run", "--list", "--device", "cpu", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "allreduce[4KiB-float32-2xcpu-pipelined]" in listed.stdout
    assert list(tmp_path.iterdir()) == [], "listing leaves nothing behind"


def test_a_gate_in_a_folder_with_a_benchmarks_package_of_its_own(installed: Installed, tmp_path: Path) -> None:
    """The user's package neither hides ours nor is imported, although `python -m pytest` puts it first on the path."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").write_text("raise SystemExit('the wrong benchmarks')\n")
    (tmp_path / "test_users_own.py").write_text("raise SystemExit('a test file was imported')\n")
    place = Place(tmp_path, installed.python, (INJECT,))
    options = ("-k", "allreduce and 4KiB", "--comm-regress-launches=2")
    status, text = place.run(*options)
    assert status == 0, text
    assert "1 without baseline (status 0)" in text
    status, text = place.run(*options, "--comm-regress-json=result.json")
    assert status == 0, text
    result = json.loads((tmp_path / "result.json").read_bytes())
    assert [case["case"] for case in result["cases"]] == [ALLREDUCE.replace("]", "-pipelined]")]
    assert len(place.runs) == 2
    assert place.gone(within=10)
