"""How the GPUs of the ranks are joined: the class of the link and of the path, stable from run to run.

Both name what the hardware is, not how it is today: a link that is down or trained to a lower rate is a matter of
health (`regress.measure.health`), and must not look like another machine without history.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Sequence

from regress.measure.devices import Devices

_NVLINK = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0"}
"""nvmlDeviceGetNvLinkVersion's numbers (nvml.h, nvmlNvlinkVersion_t)."""


def link_class(devices: Devices, gpus: Sequence[int]) -> str | None:
    """"NVLink 4.0 x18", or "PCIe 5 x16" where there is no NVLink up; "mixed" when the GPUs differ; None if unknown."""
    classes = {_link_of(devices, gpu) for gpu in gpus}
    if len(classes) > 1:
        return "mixed"
    return classes.pop() if classes else None


def _link_of(devices: Devices, gpu: int) -> str | None:
    now = devices.read(gpu)
    if now.nvlink_active:
        version = devices.nvlink_version(gpu)
        generation = "" if version is None else f" {_NVLINK.get(version, f'version {version}')}"
        return f"NVLink{generation} x{now.nvlink_active + (now.nvlink_inactive or 0)}"
    if now.pcie_generation_max is None:
        return None
    return f"PCIe {now.pcie_generation_max} x{now.pcie_width_max}"


def topology_class(devices: Devices, gpus: Sequence[int], matrix: str | None) -> str | None:
    """The kinds of path between any two of the GPUs ("NVLink", "PIX", "NODE+SYS"); "single" for one GPU.

    matrix: what `nvidia-smi topo -m` printed; where it is None, the nearest common PCIe ancestor from NVML.
    """
    if len(gpus) < 2:
        return "single"
    table = {} if matrix is None else parse_matrix(matrix)
    kinds = set()
    for one, other in itertools.combinations(gpus, 2):
        word = table.get((one, other)) or devices.links_between(one, other)
        if word is None:
            return None
        kinds.add("NVLink" if word.startswith("NV") else word)
    return "+".join(sorted(kinds))


def parse_matrix(text: str) -> dict[tuple[int, int], str]:
    """The words between GPUs in the table of `nvidia-smi topo -m`, by (row, column)."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    header = next((line.split() for line in lines if line.split()[:1] == ["GPU0"] and "X" not in line.split()), [])
    columns = [int(word[3:]) for word in itertools.takewhile(lambda w: re.fullmatch(r"GPU\d+", w), header)]
    table = {}
    for line in lines:
        words = line.split()
        if words and re.fullmatch(r"GPU\d+", words[0]) and len(words) > len(columns) and "X" in words:
            row = int(words[0][3:])
            table.update({(row, column): word for column, word in zip(columns, words[1:], strict=False) if word != "X"})
    return table


def read_matrix() -> str | None:
    """What `nvidia-smi topo -m` prints; None where it is not there or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run([program, "topo", "-m"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
