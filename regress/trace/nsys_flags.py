"""Every flag this project passes to nsys: one row each, with the versions that know it and why it is there.

A flag is passed only where the binary's own `--help` lists it; where the help could not be read, the versions of the
row decide. Both matter: names change between releases (`--gpu-metrics-device` became `-devices`), an unknown flag ends
the whole command with status 1, and some releases between two tested ones have been seen to lack what both have.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

VersionNumber = tuple[int, ...]

OLDEST_TESTED: VersionNumber = (2022, 4)
"""The oldest release the flags were tried on; a row that starts here is known from there or earlier."""


class Command(enum.Enum):
    """The nsys command a flag belongs to."""

    PROFILE = "profile"
    EXPORT = "export"


class Need(enum.Enum):
    """When a flag is passed: always, only where CUDA is traced, or only where GPU metrics are sampled."""

    ALWAYS = "always"
    CUDA = "with CUDA"
    GPU_METRICS = "with GPU metrics"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    name: with its dashes. value: what we pass; `{output}`, `{session}` and `{trace}` are filled in when the command is
    built. since: first release known to have it. until: first release known to have it no more, None while it lives.
    why: one sentence for the reader of docs/nsys.md.
    """

    name: str
    value: str
    command: Command
    need: Need
    why: str
    since: VersionNumber = OLDEST_TESTED
    until: VersionNumber | None = None

    def known_to(self, version: VersionNumber) -> bool:
        """Whether a release of this number is known to have the flag, its help unseen."""
        return version[:2] >= self.since[:2] and (self.until is None or version[:2] < self.until[:2])


FLAGS: tuple[Flag, ...] = (
    Flag("--trace", "{trace}", Command.PROFILE, Need.ALWAYS,
         "kernels, copies and CUDA calls with our NVTX ranges; without a GPU the operating system's calls instead of "
         "CUDA. `cuda-sw` where offered: from 2025.6 on plain `cuda` may mean hardware tracing, which can lose every "
         "kernel of a process that outlives the capture"),
    Flag("--sample", "none", Command.PROFILE, Need.ALWAYS,
         "no CPU sampling: it needs rights, costs time inside the ranks and no metric reads it"),
    Flag("--cpuctxsw", "none", Command.PROFILE, Need.ALWAYS,
         "no context-switch tracing, which is on by default when a program is launched"),
    Flag("--capture-range", "cudaProfilerApi", Command.PROFILE, Need.CUDA,
         "record the timed steps only: warm-up and start-up would fill the report"),
    Flag("--capture-range-end", "stop", Command.PROFILE, Need.CUDA,
         "after the range the ranks go on and end by themselves; the default ends them with SIGTERM and status 143"),
    Flag("--cuda-graph-trace", "node", Command.PROFILE, Need.CUDA,
         "kernels inside a CUDA graph are rows; the default records a whole graph as one and no collective is seen"),
    Flag("--gpu-metrics-device", "all", Command.PROFILE, Need.GPU_METRICS,
         "SM-active and link counters of all GPUs; the name up to 2024", until=(2025, 3)),
    Flag("--gpu-metrics-devices", "all", Command.PROFILE, Need.GPU_METRICS,
         "the same under its newer name; the old one only warns there, the new one ends an older nsys with status 1",
         since=(2025, 3)),
    Flag("--gpu-metrics-frequency", "1000", Command.PROFILE, Need.GPU_METRICS,
         "1 kHz instead of 10 kHz: 22 thousand rows a second and GPU, not 220 thousand"),
    Flag("--wait", "primary", Command.PROFILE, Need.ALWAYS,
         "the report is written when the launcher ends, which waits for its ranks; no stray grandchild holds it up"),
    Flag("--session-new", "{session}", Command.PROFILE, Need.ALWAYS,
         "a name of our own, so that a session that hangs can be shut down without touching anybody else's"),
    Flag("--force-overwrite", "true", Command.PROFILE, Need.ALWAYS,
         "without it an existing file sends the report to the temporary folder under another name, with status 0"),
    Flag("--output", "{output}", Command.PROFILE, Need.ALWAYS,
         "an explicit path per node; an unset variable in a name would end up in it literally, with status 0"),
    Flag("--type", "sqlite", Command.EXPORT, Need.ALWAYS, "the one format every release writes and Python reads"),
    Flag("--lazy", "false", Command.EXPORT, Need.ALWAYS,
         "every table is there, empty where nothing was traced, so that a query of another tool finds it"),
    Flag("--include-json", "true", Command.EXPORT, Need.ALWAYS,
         "NVTX payloads as text: the message sizes of NCCL's ranges are in no other column", since=(2025, 3)),
    Flag("--include-blobs", "true", Command.EXPORT, Need.ALWAYS,
         "NVTX payloads as bytes: the communicator's id survives, which JSON numbers round, and reading is faster",
         since=(2025, 3)),
    Flag("--quiet", "true", Command.EXPORT, Need.ALWAYS, "no progress bar in the log"),
    Flag("--force-overwrite", "true", Command.EXPORT, Need.ALWAYS, "a left-over file must not stop the export"),
    Flag("--output", "{output}", Command.EXPORT, Need.ALWAYS,
         "an explicit path: the database gets its final name only when it is complete"),
)


def parse_version(text: str) -> VersionNumber | None:
    """The release number in what `nsys --version` prints, None if there is none.

    Seen forms: `... version 2022.4.2.1-df9881f`, `... version 2023.4.4.54-234433681190v0`,
    `... version 2025.3.1.90-253135822126v0`, and `2021.3.2` alone.
    """
    match = re.search(r"\b(20\d\d)\.(\d+)((?:\.\d+)*)", text)
    if match is None:
        return None
    return (int(match[1]), int(match[2]), *(int(part) for part in match[3].split(".") if part))


def parse_help(text: str) -> frozenset[str]:
    """The names of the flags that a help text describes; empty when it is no help text."""
    return frozenset(re.findall(r"^\s*(?:-\w, )?(--[a-z][\w-]*)", text, flags=re.MULTILINE))


def known_flags(command: Command, version: VersionNumber, help_text: str) -> frozenset[str]:
    """Which of our flags this nsys takes for `command`: by its help where that was readable, else by its version."""
    listed = parse_help(help_text)
    rows = [flag for flag in FLAGS if flag.command is command]
    return frozenset(flag.name for flag in rows if (flag.name in listed if listed else flag.known_to(version)))


def cuda_source(help_text: str) -> str:
    """The `--trace` value for CUDA: `cuda-sw` where offered, else `cuda`.

    `cuda-sw` is not chosen by version: releases around 2025.4 lack it, and one that does ends with status 1.
    """
    return "cuda-sw" if re.search(r"\bcuda-sw\b", help_text) else "cuda"


def arguments(command: Command, known: frozenset[str], needs: frozenset[Need],
              fills: Mapping[str, str] = MappingProxyType({})) -> tuple[str, ...]:
    """The flags of `command` for these needs as `--name=value`, in the table's order, unknown ones left out.

    Of the two names for GPU metrics an nsys that takes both gets the newer one.
    """
    passed = []
    for flag in FLAGS:
        if flag.command is not command or flag.need not in needs or flag.name not in known:
            continue
        if flag.name == "--gpu-metrics-device" and "--gpu-metrics-devices" in known:
            continue
        passed.append(f"{flag.name}={flag.value.format_map(fills)}")
    return tuple(passed)


def as_markdown() -> str:
    """The table of docs/nsys.md."""
    lines = ["| command | flag | passed | releases | why |", "|---|---|---|---|---|"]
    for flag in FLAGS:
        first = ".".join(map(str, flag.since)) + ("" if flag.since > OLDEST_TESTED else " and before")
        last = "" if flag.until is None else ", gone or renamed by " + ".".join(map(str, flag.until))
        lines.append(f"| {flag.command.value} | `{flag.name}={flag.value}` | {flag.need.value} | {first}{last} "
                     f"| {flag.why} |")
    return "\n".join(lines) + "\n"
