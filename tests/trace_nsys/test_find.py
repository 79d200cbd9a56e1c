from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from regress.errors import EnvironmentUnfitError
from regress.trace.nsys import (
    Importer,
    find,
    find_importer,
    gpu_metrics_obstacle,
    nvtx_package_warning,
    probe,
    vendor_paths,
)

from .fake import EXPORT_2023, PROFILE_2023, Fake

OLD = Fake(version="2023.4.4.54-234433681190v0", profile_flags=PROFILE_2023, export_flags=EXPORT_2023)


def test_a_probe_says_what_the_binary_can_do(tmp_path: Path) -> None:
    new = probe(Fake(extra_help="'cuda', 'cuda-sw', 'nvtx'").install(tmp_path / "new"))
    old = probe(OLD.install(tmp_path / "old"))
    assert new is not None
    assert old is not None
    assert (new.number, new.version) == ((2025, 3, 1, 90), "2025.3.1.90-253135822126v0")
    assert (new.cuda_source, new.payloads, new.gpu_metrics_flag) == ("cuda-sw", True, "--gpu-metrics-devices")
    assert (old.cuda_source, old.payloads, old.gpu_metrics_flag) == ("cuda", False, "--gpu-metrics-device")


def test_what_does_not_say_a_version_is_no_nsys(tmp_path: Path) -> None:
    other = tmp_path / "nsys"
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    assert probe(other) is None
    assert probe(tmp_path / "absent") is None


def test_the_environment_variable_wins_over_path(tmp_path: Path) -> None:
    named, on_path = Fake(version="2024.2.3").install(tmp_path / "a"), Fake().install(tmp_path / "b")
    found = find({"REGRESS_NSYS": str(named), "PATH": f"{on_path.parent}:/bin"}, tmp_path / "root")
    assert found is not None
    assert found.path == named


def test_a_named_nsys_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError, match="no nsys that runs"):
        find({"REGRESS_NSYS": str(tmp_path / "gone")}, tmp_path)


def test_path_is_taken_before_the_vendors_folders(tmp_path: Path) -> None:
    on_path = OLD.install(tmp_path / "path")
    Fake().install(tmp_path / "root/opt/nvidia/nsight-systems/2025.3.1")
    found = find({"PATH": f"{on_path.parent}:/bin"}, tmp_path / "root")
    assert found is not None
    assert found.path == on_path


def test_of_the_vendors_folders_the_newest_that_can_write_reports_is_taken(tmp_path: Path) -> None:
    root = tmp_path / "root"
    Fake(version="2024.2.3").install(root / "opt/nvidia/nsight-systems/2024.2.3")
    good = Fake(version="2025.1.1").install(root / "opt/nvidia/nsight-systems/2025.1.1")
    Fake(version="2025.3.1", files=()).install(root / "opt/nvidia/nsight-compute/2025.3.1/host")
    found = find({"PATH": "/bin"}, root)
    assert found is not None
    assert found.path == good


def test_a_machine_without_nsys_has_none(tmp_path: Path) -> None:
    assert find({"PATH": str(tmp_path)}, tmp_path) is None


def test_links_to_one_binary_count_once(tmp_path: Path) -> None:
    path = Fake().install(tmp_path / "opt/nvidia/nsight-systems/2025.3.1")
    link = tmp_path / "usr/local/cuda/bin/nsys"
    link.parent.mkdir(parents=True)
    link.symlink_to(path)
    assert vendor_paths(tmp_path) == (path,)


def test_missing_importer_and_missing_libraries_are_named(tmp_path: Path) -> None:
    nsys = Fake(files=()).install(tmp_path)
    nsys.write_bytes(b"\x7fELF")
    assert "comes without its importer" in find_importer(nsys).obstacle
    assert Importer(Path("/x/Importer"), ("libdw.so.1",)).obstacle == "the importer /x/Importer lacks libdw.so.1"


def test_a_launcher_script_hides_where_the_importer_is(tmp_path: Path) -> None:
    assert find_importer(Fake(files=()).install(tmp_path)) == Importer(None, hidden=True)
    assert Importer(None, hidden=True).obstacle == ""


@pytest.mark.parametrize(("params", "capabilities", "obstacle"), [
    ("RmProfilingAdminOnly: 1\n", "0000000000000000", "administrators"),
    ("RmProfilingAdminOnly: 1\n", "0000000000200000", ""),
    ("RmProfilingAdminOnly: 1\n", "0000004000000000", ""),
    ("RmProfilingAdminOnly: 0\n", "0000000000000000", ""),
    ("", "0000000000000000", ""),
])
def test_gpu_counters_are_checked_against_driver_and_rights(tmp_path: Path, params: str, capabilities: str,
                                                            obstacle: str) -> None:
    (tmp_path / "params").write_text(params)
    (tmp_path / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    said = gpu_metrics_obstacle(tmp_path / "params", tmp_path / "status")
    assert obstacle in said
    assert bool(said) == bool(obstacle)


def test_without_a_driver_there_are_no_counters(tmp_path: Path) -> None:
    assert "no NVIDIA driver" in gpu_metrics_obstacle(tmp_path / "nvidia" / "params", tmp_path / "status")


@pytest.mark.parametrize(("nsys", "nvtx", "verb"), [
    ("2022.4.2.1-df9881f", "0.2.11", ""), ("2022.4.2.1-df9881f", "0.2.12", "loses every"),
    ("2023.4.4.54-234433681190v0", "0.2.17", "loses every"), ("2024.2.3", "0.3.0", "loses every"),
    ("2024.6.1", "0.2.17", "may lose"), ("2025.3.1", "0.2.17", ""), ("unknown", "0.2.17", ""),
])
def test_lost_ranges_of_the_nvtx_package_are_said(nsys: str, nvtx: str, verb: str) -> None:
    said = nvtx_package_warning(nsys, nvtx)
    assert (verb in said and "nvtx<0.2.12" in said) if said else not verb


def test_the_script_that_hides_its_importer_still_counts_as_usable(tmp_path: Path) -> None:
    found = find({"PATH": f"{replace(OLD, files=()).install(tmp_path).parent}:/bin"}, tmp_path / "root")
    assert found is not None
    assert not found.importer.obstacle
