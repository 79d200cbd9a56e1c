"""The page that documents the data block is true: its example runs, and it names every key."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.html.histories import allreduce, sha
from tests.html.test_data_block import embedded, small_report, unpack

PAGE = (Path(__file__).parents[2] / "docs" / "report-data.md").read_text(encoding="utf-8")


def test_the_example_prints_every_point(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    (tmp_path / "report.html").write_text(small_report(), encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", example[1]], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 8 + 7 + 8
    slow = [line for line in lines if line.startswith(f"{sha(7)} {allreduce(2**24).id} allreduce_seconds")]
    assert [round(float(line.split()[-1]) * 1e6) for line in slow] == [82]


def test_every_key_is_documented() -> None:
    block = embedded(small_report())
    series = block["series"][0]
    keys = [*block, *series, *unpack(block["runs"]), *unpack(block["environments"]), *unpack(series["points"]),
            *block["sweeps"], *block["trace"], *block["trace"]["collectives"][0]]
    missing = [key for key in keys if f"`{key}`" not in PAGE]
    assert missing == []
