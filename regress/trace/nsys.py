"""Find Nsight Systems on this machine and know what it can do.

`find()` looks in `REGRESS_NSYS`, on PATH and in the vendor's folders, newest first, and asks the binary itself: its
version, the flags it takes, whether its importer can be loaded, and whether GPU counters are allowed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from regress.errors import EnvironmentUnfitError
from regress.trace.nsys_flags import Command, VersionNumber, cuda_source, known_flags, parse_version

VENDOR_PATTERNS = (
    "opt/nvidia/nsight-systems/*/bin/nsys",
    "opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "opt/nvidia/nsight-systems-cli/*/target-linux-*/nsys",
    "opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
    "usr/local/cuda*/bin/nsys",
    "usr/local/cuda*/nsight-systems-*/target-linux-*/nsys",
    "usr/lib/nsight-systems/target-linux-*/nsys",
)
"""Where NVIDIA's and the distributions' packages put nsys, relative to the root of the file system."""

PROBE_SECONDS = 20.0
"""Longest time to wait for `--version`, `--help` and `ldd`; each takes tens of milliseconds on a healthy machine."""

_ADMIN_CAPABILITIES = (1 << 21) | (1 << 38)
"""CAP_SYS_ADMIN and CAP_PERFMON as bits of CapEff, capabilities(7)."""


@dataclass(frozen=True, slots=True)
class Importer:
    """The program that turns the raw `.qdstrm` into a report.

    path: None when there is none beside this nsys. missing: shared libraries the loader does not find for it.
    hidden: the nsys that was found is a script that starts another one, so that "none beside it" says nothing.
    """

    path: Path | None
    missing: tuple[str, ...] = ()
    hidden: bool = False

    @property
    def obstacle(self) -> str:
        """Why no report can be written, empty when one can."""
        if self.path is None:
            return "" if self.hidden else "this nsys comes without its importer (host-linux-x64/QdstrmImporter)"
        return f"the importer {self.path} lacks {', '.join(self.missing)}" if self.missing else ""

    @property
    def rank(self) -> int:
        """2 when it can be loaded, 1 when nothing is known of it, 0 when no report can be written."""
        return 0 if self.obstacle else 1 if self.path is None else 2


@dataclass(frozen=True, slots=True)
class Nsys:
    """One nsys and what it can do.

    path: the binary. version: as it printed it, e.g. "2025.3.1.90-253135822126v0". number: the same as integers.
    profile_flags, export_flags: the names of our flags (see `nsys_flags.FLAGS`) that it takes.
    cuda_source: "cuda" or "cuda-sw", the `--trace` value. importer: what writes its reports.
    gpu_metrics_obstacle: why GPU counters cannot be sampled here, empty when they can.
    """

    path: Path
    version: str
    number: VersionNumber
    profile_flags: frozenset[str]
    export_flags: frozenset[str]
    cuda_source: str
    importer: Importer
    gpu_metrics_obstacle: str = ""

    @property
    def payloads(self) -> bool:
        """Whether an export can hold NVTX payloads, and with them NCCL's message sizes."""
        return bool({"--include-json", "--include-blobs"} & self.export_flags)

    @property
    def gpu_metrics_flag(self) -> str | None:
        """The name this release has for choosing the GPUs whose counters are sampled."""
        known = (name for name in ("--gpu-metrics-devices", "--gpu-metrics-device") if name in self.profile_flags)
        return next(known, None)


NVTX_PACKAGE_CHANGED: VersionNumber = (0, 2, 12)
"""First release of the Python package `nvtx` whose ranges an older nsys loses."""

NVTX_LOST_UNTIL: VersionNumber = (2024, 2)
"""Newest nsys known to lose them: 2022.4.2 and 2023.4.4 in our tests, 2024.2.3 by report."""

NVTX_SEEN_FROM: VersionNumber = (2025, 3)
"""Oldest nsys known to keep them: 2025.3.1 with 0.2.11, 0.2.12 and 0.2.17, on an H200 machine."""


def nvtx_package_warning(nsys_version: str, nvtx_version: str) -> str | None:
    """What becomes of ranges pushed through the Python package `nvtx` under this nsys; None when they arrive.

    nsys_version, nvtx_version: as `nsys --version` and the package's metadata say them. Where they are lost nsys says
    nothing: the domain is there, its ranges are not, and the status is 0. Ranges of torch.cuda.nvtx are not affected.
    """
    number = parse_version(nsys_version)
    package = tuple(int(part) for part in re.findall(r"\d+", nvtx_version)[:3])
    if number is None or package < NVTX_PACKAGE_CHANGED or number[:2] >= NVTX_SEEN_FROM:
        return None
    verb = "loses" if number[:2] <= NVTX_LOST_UNTIL else "may lose"
    return (f"nsys {nsys_version} {verb} every range of the Python package nvtx {nvtx_version}: "
            "install nvtx<0.2.12, or nsys 2025.3 or newer")


def find(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Nsys | None:
    """The nsys to use, None when this machine has none that runs.

    `REGRESS_NSYS` (a path) wins and must run: EnvironmentUnfitError when it does not. Else the first on PATH, else the
    newest of the vendor folders under `root`; of those, one with a loadable importer before one without.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("REGRESS_NSYS", "")
    if named:
        found = probe(Path(named))
        if found is None:
            raise EnvironmentUnfitError(f"REGRESS_NSYS={named} is no nsys that runs", where="environment",
                                        accepted="the path of an nsys binary",
                                        next_step=f"try `{named} --version`, or unset REGRESS_NSYS")
        return found
    on_path = shutil.which("nsys", path=environ.get("PATH", ""))
    if on_path is not None and (found := probe(Path(on_path))) is not None and not found.importer.obstacle:
        return found
    others = [nsys for path in vendor_paths(root) if (nsys := probe(path)) is not None]
    first = [found] if on_path is not None and found is not None else []
    return max(first + others, key=lambda nsys: (nsys.importer.rank, nsys.number), default=None)


def vendor_paths(root: Path = Path("/")) -> tuple[Path, ...]:
    """Executables called nsys in the vendor's folders, each once however many links lead to it."""
    seen: dict[Path, Path] = {}
    for pattern in VENDOR_PATTERNS:
        for path in sorted(root.glob(pattern)):
            if os.access(path, os.X_OK):
                seen.setdefault(path.resolve(), path)
    return tuple(seen.values())


def probe(path: Path) -> Nsys | None:
    """Ask one binary what it is and can do; None when it does not run or does not say a version."""
    printed = _output((str(path), "--version"))
    number = parse_version(printed)
    if number is None:
        return None
    profile_help = _output((str(path), "profile", "--help"))
    export_help = _output((str(path), "export", "--help"))
    shown = re.search(r"20\d\d\.\S+", printed)
    return Nsys(path=path, version=shown[0] if shown else printed.strip(), number=number,
                profile_flags=known_flags(Command.PROFILE, number, profile_help),
                export_flags=known_flags(Command.EXPORT, number, export_help),
                cuda_source=cuda_source(profile_help),
                importer=find_importer(path), gpu_metrics_obstacle=gpu_metrics_obstacle())


def find_importer(nsys: Path) -> Importer:
    """The importer that belongs to an nsys, with the libraries it misses.

    It lies in the folder `host-linux-*` beside the folder of the binary (`linux-desktop-*` in Nsight Compute's copy),
    or two levels up where the binary on PATH is the launcher in `bin/`. Libraries are looked for as nsys itself will:
    in that folder and on LD_LIBRARY_PATH.
    """
    resolved = nsys.resolve()
    for folder in _importer_folders(resolved):
        path = folder / "QdstrmImporter"
        if path.is_file():
            inherited = os.environ.get("LD_LIBRARY_PATH", "")
            searched = os.pathsep.join(part for part in (str(folder), inherited) if part)
            listed = _output(("ldd", str(path)), {"LD_LIBRARY_PATH": searched, "PATH": os.environ.get("PATH", "")})
            missing = re.findall(r"^\s*(\S+) => not found", listed, flags=re.MULTILINE)
            return Importer(path, tuple(dict.fromkeys(missing)))
    return Importer(None, hidden=_is_script(resolved))


def _is_script(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _importer_folders(resolved: Path) -> Iterator[Path]:
    for base in (resolved.parent.parent, resolved.parent, resolved.parent.parent.parent):
        yield from sorted((*base.glob("host-linux-*"), *base.glob("linux-desktop-*")))


def gpu_metrics_obstacle(params: Path = Path("/proc/driver/nvidia/params"),
                         status: Path = Path("/proc/self/status")) -> str:
    """Why GPU counters cannot be sampled by this process, empty when nothing stands in the way.

    params: the driver's settings, of which RmProfilingAdminOnly reserves the counters for administrators.
    status: the process's own, of which CapEff says whether it is one (CAP_SYS_ADMIN, or CAP_PERFMON from driver 565).
    A params file that is absent while others of the driver are there counts as unrestricted: nsys itself then decides.
    """
    if not params.is_file():
        return "no NVIDIA driver on this machine" if not params.parent.is_dir() else ""
    restricted = re.search(r"^RmProfilingAdminOnly:\s*1", params.read_text(errors="replace"), flags=re.MULTILINE)
    if restricted is None:
        return ""
    held = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status.read_text(errors="replace"), flags=re.MULTILINE)
    if held is not None and int(held[1], 16) & _ADMIN_CAPABILITIES:
        return ""
    return ("the driver reserves GPU counters for administrators (RmProfilingAdminOnly: 1): load it with "
            "NVreg_RestrictProfilingToAdminUsers=0, or run with CAP_SYS_ADMIN")


def _output(command: tuple[str, ...], environ: Mapping[str, str] | None = None) -> str:
    """What a short command printed on either stream, empty when it could not be run or did not end in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PROBE_SECONDS,
                              stdin=subprocess.DEVNULL, env=None if environ is None else dict(environ), check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr
