"""Real gates as a user starts them: `python -m pytest --comm-regress` in a folder, two gloo ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
INJECT = Path(__file__).parent / "inject"
MARK = "COMM_REGRESS_TEST_FOLDER"
PATIENCE = 120.0
"""Seconds until a test gives up."""

ALLREDUCE = "allreduce[4KiB-float32-2xcpu]"
ALLGATHER = "allgather[4KiB-float32-2xcpu]"


def thresholds(*, launches: int = 1, gate: str = "", ranks: str = "", workloads: tuple[str, ...] = ("allreduce",),
               ) -> str:
    """A thresholds file with one small case for each workload."""
    cases = "".join(f"  - {{workload: {name}, devices: [cpu], sizes: [4KiB], timing: isolated{ranks}}}\n"
                    for name in workloads)
    return (f"schema: 1\ngate: {{{gate}}}\ndevices: {{cpu: {{launches: {launches}, case_duration: 50ms}}}}\n"
            f"cases:\n{cases}")


@dataclass(slots=True)
class Running:
    """A gate that was started."""

    process: subprocess.Popen[bytes]
    log: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def text(self) -> str:
        """What it printed up to now."""
        return self.log.read_text(errors="replace")

    def until(self, words: str) -> str:
        """Waits for these words and returns everything printed by then."""
        deadline = time.monotonic() + PATIENCE
        while words not in self.text:
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {words!r}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {words!r} in time:\n{self.text}"
            time.sleep(0.05)
        return self.text

    def end(self) -> tuple[int, str]:
        """Waits for the end; exit status and everything printed."""
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"did not end in time:\n{self.text}") from None
        return status, self.text


@dataclass(frozen=True, slots=True)
class Place:
    """A folder in which gates run. python: the interpreter they run in. paths: its PYTHONPATH."""

    folder: Path
    python: str = sys.executable
    paths: tuple[Path, ...] = (INJECT, ROOT)

    def start(self, *options: str, fault: str | None = None, environment: Mapping[str, str] | None = None) -> Running:
        """Starts a gate; its processes carry this folder's name in their environment."""
        known = {name: value for name, value in os.environ.items()
                 if name not in ("CI", "COLUMNS") and not name.startswith(("PYTEST_", "GITHUB_", "COMM_REGRESS_"))}
        known |= {"PYTHONPATH": os.pathsep.join(map(str, self.paths)),
                  "PYTHONUNBUFFERED": "1", "TMPDIR": str(self.folder), MARK: str(self.folder), **(environment or {})}
        if fault is not None:
            known["COMM_REGRESS_TEST_FAULT"] = fault
        log = self.folder / f"gate{len(list(self.folder.glob('gate*.log')))}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [self.python, "-m", "pytest", "-p", "no:cacheprovider", "--comm-regress", "--comm-regress-trace=none",
                 "--comm-regress-device=cpu", *options], cwd=self.folder, env=known, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        return Running(process, log)

    def run(self, *options: str, fault: str | None = None,
            environment: Mapping[str, str] | None = None) -> tuple[int, str]:
        """A gate from start to end: exit status and everything printed."""
        return self.start(*options, fault=fault, environment=environment).end()

    def configure(self, text: str) -> None:
        """Writes the thresholds file."""
        (self.folder / "thresholds.yaml").write_text(text)

    @property
    def runs(self) -> list[Path]:
        """The stored runs, oldest first."""
        return sorted((self.folder / ".comm-regress" / "runs").glob("*.json"))

    @property
    def left(self) -> list[str]:
        """Files and folders that gates left behind: all that is neither theirs to keep nor of the test."""
        own = {"thresholds.yaml", "host.lock", ".comm-regress"}
        found = [path.name for path in self.folder.iterdir()
                 if path.name not in own and not (path.name.startswith("gate") and path.suffix == ".log")]
        return sorted(found + [path.name for path in (self.folder / ".comm-regress").rglob("*.tmp")])

    def processes(self) -> list[int]:
        """Every living process of a gate in this folder."""
        return list(_carrying(f"{MARK}={self.folder}".encode()))

    def gone(self, within: float) -> bool:
        """Whether all of them end within that many seconds."""
        deadline = time.monotonic() + within
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True


def _carrying(item: bytes) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in ("Z", "X") and item in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)
        except OSError:  # ended meanwhile, or somebody else's
            continue
