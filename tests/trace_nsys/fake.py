"""A stand-in for nsys: a shell script that prints what a release prints and leaves the files it leaves."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

COMMON = ("--trace", "--sample", "--cpuctxsw", "--capture-range", "--capture-range-end", "--cuda-graph-trace",
          "--gpu-metrics-frequency", "--wait", "--session-new", "--force-overwrite", "--output")
PROFILE_2023 = (*COMMON, "--gpu-metrics-device")
PROFILE_2025 = (*COMMON, "--gpu-metrics-devices")
EXPORT_2023 = ("--type", "--lazy", "--quiet", "--force-overwrite", "--output")
EXPORT_2025 = (*EXPORT_2023, "--include-json", "--include-blobs")

WRITE_REPORT = 'echo report > "$output"; printf "Generated:\\n    $output\\n"'


def help_text(flags: tuple[str, ...], extra: str = "") -> str:
    """Flags as a help text lists them."""
    return "usage: nsys\n\n" + "".join(f"\t{flag}=\n\n\t   Words about it.\n\n" for flag in flags) + extra


@dataclass(frozen=True, slots=True)
class Fake:
    """What the stand-in does.

    profile, export: shell text; `$output` is the path given and `$gpu` is not empty when GPU metrics are asked for.
    database: copied by the default export.
    """

    version: str = "2025.3.1.90-253135822126v0"
    profile_flags: tuple[str, ...] = PROFILE_2025
    export_flags: tuple[str, ...] = EXPORT_2025
    extra_help: str = ""
    profile: str = WRITE_REPORT
    export: str = 'cp "$database" "$output"'
    sessions: str = ""
    files: tuple[str, ...] = field(default=("host-linux-x64/QdstrmImporter",))

    def install(self, folder: Path) -> Path:
        """Write it as `folder`/target-linux-x64/nsys with an importer beside it; its path."""
        path = folder / "target-linux-x64" / "nsys"
        path.parent.mkdir(parents=True)
        for name in self.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("#!/bin/sh\n")
        (folder / "profile.help").write_text(help_text(self.profile_flags, self.extra_help))
        (folder / "export.help").write_text(help_text(self.export_flags))
        make_export(folder / "export.sqlite")
        path.write_text(self._script(folder))
        path.chmod(0o755)
        return path

    def _script(self, folder: Path) -> str:
        return f"""#!/bin/sh
if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version {self.version}"; exit 0; fi
if [ "$2" = --help ]; then cat {folder}/$1.help; exit 0; fi
echo "$@" >> {folder}/calls
database={folder}/export.sqlite
for word in "$@"; do case "$word" in
  --output=*) output="${{word#--output=}}" ;;
  --gpu-metrics-device*) gpu=yes ;;
  --session=*|--session-new=*) session="${{word#*=}}" ;;
esac; done
case "$1" in
  profile) {self.profile} ;;
  export) {self.export} ;;
  sessions) {self.sessions or "true"} ;;
  shutdown) true ;;
esac
"""


def make_export(path: Path) -> None:
    """The smallest database that passes for an export, with one row in every place that needs scrubbing."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript("""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            INSERT INTO StringIds VALUES (1, 'printed by the program: hunter2'), (2, '/tmp/pid_stdout.log'),
                                         (3, 'MY_TOKEN=hunter2'), (4, 'STEP=3'), (5, 'a kernel');
            CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER);
            INSERT INTO ProcessStreams VALUES (1, 2, 1);
            CREATE TABLE NVTX_EVENTS (start INTEGER, textId INTEGER, text TEXT);
            INSERT INTO NVTX_EVENTS VALUES (0, 4, NULL), (1, NULL, 'step');
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
            CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
            INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('DeviceEnvironment', 'A=1;MY_TOKEN=hunter2'),
                ('Hostname', 'secret-host'), ('NvDriverVersion', '580.1');
            CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
            INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', 'MY_TOKEN="hunter2"'),
                ('PROCESS_0:COMMAND', 'torchrun'), ('PROCESS_0:ARGUMENT_1', '--key=hunter2'),
                ('PROCESS_0:WORKING_DIR', '/home/ann'), ('PROCESS_0:USER_NAME', 'ann'),
                ('DEVICE_DISPLAY_NAME', 'secret-host'), ('PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE', 'Node');
            CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
            INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_HOST', 'secret-host'), ('EXPORT_USER', 'ann'),
                ('EXPORT_PARAM_INPUT_PATH_ABS', '/home/ann/t.nsys-rep'), ('EXPORT_SCHEMA_VERSION', '3.20.3');
        """)
