from __future__ import annotations

from pathlib import Path

import pytest

from regress.trace.nsys_flags import (
    FLAGS,
    Command,
    Need,
    VersionNumber,
    arguments,
    as_markdown,
    cuda_source,
    known_flags,
    parse_help,
    parse_version,
)

from .fake import EXPORT_2023, EXPORT_2025, PROFILE_2023, PROFILE_2025, help_text

ALL_NEEDS = frozenset(Need)
FILLS = {"trace": "cuda,nvtx", "output": "/x/t.nsys-rep", "session": "s1"}


@pytest.mark.parametrize(("printed", "number"), [
    ("NVIDIA Nsight Systems version 2022.4.2.1-df9881f\n", (2022, 4, 2, 1)),
    ("NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0", (2023, 4, 4, 54)),
    ("NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0", (2025, 3, 1, 90)),
    ("Nsight Systems version 2021.3.2", (2021, 3, 2)),
    ("2026.1", (2026, 1)),
    ("nsys: command not found", None),
    ("", None),
])
def test_the_version_is_read_in_every_style(printed: str, number: VersionNumber | None) -> None:
    assert parse_version(printed) == number


def test_help_names_flags_with_and_without_a_short_form() -> None:
    text = "\t-o, --output=\n\n\t   See --wait below, and --stats.\n\n\t--cuda-graph-trace=<granularity>[:<origin>]\n"
    assert parse_help(text) == {"--output", "--cuda-graph-trace"}


@pytest.mark.parametrize(("command", "flags", "absent"), [
    (Command.PROFILE, PROFILE_2023, {"--gpu-metrics-devices"}),
    (Command.PROFILE, PROFILE_2025, {"--gpu-metrics-device"}),
    (Command.EXPORT, EXPORT_2023, {"--include-json", "--include-blobs"}),
    (Command.EXPORT, EXPORT_2025, set()),
])
def test_the_help_decides_which_flags_are_passed(command: Command, flags: tuple[str, ...], absent: set[str]) -> None:
    ours = {flag.name for flag in FLAGS if flag.command is command}
    assert ours - known_flags(command, (2030, 1), help_text(flags)) == absent


@pytest.mark.parametrize(("number", "gpu_metrics", "payloads"), [
    ((2022, 4, 2, 1), "--gpu-metrics-device=all", False), ((2024, 2, 3), "--gpu-metrics-device=all", False),
    ((2025, 3, 1), "--gpu-metrics-devices=all", True), ((2026, 2), "--gpu-metrics-devices=all", True),
])
def test_without_help_the_version_decides(number: VersionNumber, gpu_metrics: str, payloads: bool) -> None:
    profile = arguments(Command.PROFILE, known_flags(Command.PROFILE, number, ""), ALL_NEEDS, FILLS)
    assert [word for word in profile if word.startswith("--gpu-metrics-device")] == [gpu_metrics]
    export = arguments(Command.EXPORT, known_flags(Command.EXPORT, number, ""), ALL_NEEDS, FILLS)
    assert ("--include-json=true" in export, "--include-blobs=true" in export) == (payloads, payloads)


def test_only_the_newer_name_is_passed_to_a_release_that_takes_both() -> None:
    known = known_flags(Command.PROFILE, (2024, 5), help_text((*PROFILE_2023, "--gpu-metrics-devices")))
    passed = arguments(Command.PROFILE, known, ALL_NEEDS, FILLS)
    assert [word for word in passed if word.startswith("--gpu-metrics-device")] == ["--gpu-metrics-devices=all"]


def test_flags_of_a_need_come_only_with_it() -> None:
    known = known_flags(Command.PROFILE, (2025, 3), "")
    passed = arguments(Command.PROFILE, known, frozenset({Need.ALWAYS}), FILLS)
    assert "--output=/x/t.nsys-rep" in passed
    assert not [word for word in passed if "capture-range" in word or "gpu-metrics" in word or "graph" in word]


def test_software_tracing_is_asked_for_where_offered() -> None:
    assert cuda_source("one or more of 'cuda', 'cuda-hw', 'nvtx'") == "cuda"
    assert cuda_source("one or more of 'cuda', 'cuda-sw', 'nvtx'") == "cuda-sw"


def test_every_flag_has_a_reason_and_appears_once_per_command() -> None:
    names = [(flag.command, flag.name) for flag in FLAGS]
    assert len(names) == len(set(names))
    assert all(len(flag.why) > 20 for flag in FLAGS)


def test_the_documentation_holds_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "nsys.md"
    assert as_markdown() in page.read_text(), "put what nsys_flags.as_markdown() returns into docs/nsys.md"
