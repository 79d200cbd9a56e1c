"""`regress publish github` runs with what .github/publish-requirements.txt names, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.github.jobs import job
from tests.github.runner import ROOT
from tests.github.runs import recorded_json

PROGRAM = """\
import sys
from regress.cli import main
status = main(sys.argv[1:])
print("MODULES", *sorted({name.split(".")[0] for name, module in sys.modules.items()
                         if "site-packages" in str(getattr(module, "__file__", ""))}))
sys.exit(status)
"""
OF_THEM = {"certifi", "charset_normalizer", "chardet", "idna", "typing_extensions", "urllib3"}
"""What the listed packages bring along, or use where it is there."""


def test_only_the_listed_packages_are_imported(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(recorded_json())
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **job(tmp_path, "http://127.0.0.1:9", None)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, "publish", "github", "--result",
                           str(tmp_path / "result.json")],
                          env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    imported = set(done.stdout.split("MODULES", 1)[1].split())
    listed = set(re.findall(r"^([\w-]+)==", (ROOT / ".github" / "publish-requirements.txt").read_text(), re.MULTILINE))
    assert {name for name in imported if not name.startswith("_")} - OF_THEM <= {
        {"pyyaml": "yaml"}.get(name, name) for name in listed}
