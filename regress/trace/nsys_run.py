"""Run a launcher under nsys and judge what came out: the exit status of nsys is not believed.

nsys ends with status 0 when it wrote no report, wrote it elsewhere, or left only the raw `.qdstrm`; so `collect` looks
at the files and, where they are not right, names the cause from what nsys printed. Nothing here raises because of the
profiler: a traced launch that fails is a `Collected` with `error` set, and the untraced figures stay what they are.

One node: `nsys profile … torchrun …`, one session around the launcher, so all ranks share one clock and one file.
Several nodes: nsys goes inside the launcher, once per node, with the node's name in the file:
`srun --ntasks-per-node=1 nsys profile … --output=DIR/trace-%h.nsys-rep torchrun --nnodes=… …`. `node_output` makes that
path (nsys itself replaces `%h` with the host's name) and `node_reports` finds what all nodes wrote.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regress.errors import RegressError, TraceUnfitError
from regress.trace.nsys import Nsys
from regress.trace.nsys_export import export_sqlite
from regress.trace.nsys_flags import Command, Need, arguments
from regress.trace.nsys_privacy import hidden_names, scrub_sqlite, scrubbed_environment

REPORT_SUFFIX = ".nsys-rep"

FRESH_SLACK_SECONDS = 2.0
"""A report this much older than the launch still counts as fresh: file systems keep coarse or foreign clocks."""

GRACE_SECONDS = 60.0
"""Time after SIGTERM in which nsys may write its report before the session is shut down by force."""

_sessions = itertools.count()


@dataclass(frozen=True, slots=True)
class Collected:
    """What a traced launch left behind.

    report: the `.nsys-rep`, sqlite: its export without environment rows; each None when there is none.
    exit_status: of nsys, which passes on the launcher's; None when it had to be ended.
    error: why there is no usable trace, empty when there is one. without_gpu_metrics: the cause is GPU counters, and
    a second launch without them would work. warnings: what the trace lacks or what had to be done to get it.
    """

    report: Path | None = None
    sqlite: Path | None = None
    exit_status: int | None = None
    error: str = ""
    without_gpu_metrics: bool = False
    warnings: tuple[str, ...] = ()


def new_session() -> str:
    """A session name nobody else uses: nsys refuses one that is still known, also seconds after its end."""
    return f"commregress{os.getpid()}x{next(_sessions)}x{time.time_ns() % 10**9}"


def node_output(folder: Path, stem: str = "trace") -> Path:
    """The output path for a launch with one nsys per node: nsys puts the node's name where `%h` stands."""
    return folder / f"{stem}-%h{REPORT_SUFFIX}"


def node_reports(folder: Path, stem: str = "trace") -> tuple[Path, ...]:
    """The reports that the nodes of a launch with `node_output` wrote, sorted by name."""
    return tuple(sorted(folder.glob(f"{stem}-*{REPORT_SUFFIX}")))


def profile_command(nsys: Nsys, output: Path, *, gpu_metrics: bool = False, cuda: bool = True, session: str = "",
                    environ: Mapping[str, str] | None = None, keep: Iterable[str] = ()) -> tuple[str, ...]:
    """What to put before the launcher's command line.

    output: path of the report, `.nsys-rep` added where it lacks. cuda: trace CUDA and NVTX between cudaProfilerStart
    and -Stop; without it NVTX and the operating system's calls over the whole launch, as no CPU program opens a
    CUDA capture range. gpu_metrics: sample the counters of all GPUs too (see `Nsys.gpu_metrics_obstacle`).
    session: from `new_session`, when the caller wants to shut the session down itself.
    environ: what the launch would inherit, by default this process's environment; names in it that the report must
    not store are unset by an `env -u` in front. keep: names to pass on all the same.
    """
    needs = {Need.ALWAYS} | ({Need.CUDA} if cuda else set()) | ({Need.GPU_METRICS} if gpu_metrics else set())
    fills = {"trace": f"{nsys.cuda_source},nvtx" if cuda else "nvtx,osrt", "output": str(report_path(output)),
             "session": session or new_session()}
    unset = [f"--unset={name}" for name in hidden_names(os.environ if environ is None else environ, keep)]
    return (*(["env", *unset] if unset else []), str(nsys.path), "profile",
            *arguments(Command.PROFILE, nsys.profile_flags, frozenset(needs), fills))


def report_path(output: Path) -> Path:
    """The file nsys writes for `--output=output`."""
    return output if output.suffix == REPORT_SUFFIX else output.with_name(output.name + REPORT_SUFFIX)


def run(nsys: Nsys, argv: Sequence[str], output: Path, *, cuda: bool = True, gpu_metrics: bool = False,
        environ: Mapping[str, str] | None = None, timeout: float = 600.0, grace: float = GRACE_SECONDS) -> Collected:
    """Launch `argv` under nsys, wait at most `timeout` seconds, and collect and export the report.

    environ: passed on through `scrubbed_environment`, because the report stores all of it. What nsys and the program
    print goes to a `.log` beside the report. Where nsys refuses the GPU counters it is launched once more without.
    """
    environ = scrubbed_environment(os.environ if environ is None else environ)

    def once(gpu_metrics: bool) -> Collected:
        session = new_session()
        prefix = profile_command(nsys, output, gpu_metrics=gpu_metrics, cuda=cuda, session=session, environ=environ)
        return _launch(nsys, (*prefix, *argv), report_path(output), session, environ=environ, timeout=timeout,
                       grace=grace, cuda=cuda)

    collected = once(gpu_metrics)
    if not (gpu_metrics and collected.without_gpu_metrics):
        return collected
    again = once(False)
    return replace(again, warnings=(f"GPU counters left out: {collected.error}", *again.warnings))


def _launch(nsys: Nsys, command: tuple[str, ...], report: Path, session: str, *, environ: Mapping[str, str],
            timeout: float, grace: float, cuda: bool) -> Collected:
    log = report.with_suffix(".log")
    started = time.time()
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        for stale in (report, report.with_suffix(".qdstrm"), report.with_suffix(".sqlite")):
            stale.unlink(missing_ok=True)
        with log.open("wb") as stream:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                                       env=dict(environ), start_new_session=True)
            ended = end_in_time(nsys, process, session, timeout, grace)
        printed = log.read_text(errors="replace")
    except OSError as error:
        return Collected(error=f"nsys could not be launched: {error}")
    collected = collect(nsys, report, log=printed, started=started, exit_status=process.returncode, cuda=cuda)
    return replace(collected, warnings=(*ended, *collected.warnings))


def end_in_time(nsys: Nsys, process: subprocess.Popen[bytes], session: str, timeout: float,
                grace: float = GRACE_SECONDS) -> tuple[str, ...]:
    """Wait for an nsys that leads its own process group; past `timeout` seconds, end it and say what was done.

    SIGTERM first, on which nsys writes its report; after `grace` seconds the session is shut down with its processes,
    since killing nsys alone would leave its agent and the program running; last, the group is killed.
    """
    try:
        process.wait(timeout)
        return ()
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    said = f"the traced launch had not ended after {timeout:.0f} s and was ended"
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        said += "; " + (shutdown_session(nsys, session) or "its session was gone, its processes were killed")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return (said,)


def shutdown_session(nsys: Nsys, session: str, timeout: float = 30.0) -> str:
    """Shut down a session that hangs, with the processes it traces; what was done, empty when it was not running."""
    try:
        listed = subprocess.run((str(nsys.path), "sessions", "list"), capture_output=True, text=True, check=False,
                                timeout=timeout, stdin=subprocess.DEVNULL).stdout
        if not re.search(rf"\b{re.escape(session)}\b", listed):
            return ""
        done = subprocess.run((str(nsys.path), "shutdown", f"--session={session}", "--kill=sigkill"), timeout=timeout,
                              capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the session {session} could not be shut down ({error})"
    return f"the session {session} was shut down (status {done.returncode})"


def collect(nsys: Nsys, output: Path, *, log: str, started: float, exit_status: int | None,
            cuda: bool = True) -> Collected:
    """Judge what a traced launch wrote, export it and take the environment out of the export.

    log: all that nsys and the program printed. started: seconds since the epoch just before the launch. cuda: whether
    CUDA was traced, which is where NVTX payloads would be missed.
    Never raises a RegressError: it becomes `Collected.error`, and a report whose export failed is still named.
    """
    report: Path | None = None
    try:
        report = judge_report(nsys, report_path(output), log, started)
        sqlite = export_sqlite(nsys, report)
        scrub_sqlite(sqlite)
    except RegressError as error:
        return Collected(report=report, exit_status=exit_status, error=error.text,
                         without_gpu_metrics=_blames_gpu_metrics(log))
    warnings: tuple[str, ...] = () if exit_status == 0 else (f"the traced launch ended with status {exit_status}",)
    if cuda and not nsys.payloads:
        warnings += (f"nsys {nsys.version} exports no NVTX payloads: message sizes are not in its traces",)
    return Collected(report=report, sqlite=sqlite, exit_status=exit_status, warnings=warnings)


def judge_report(nsys: Nsys, report: Path, log: str, started: float) -> Path:
    """The report, when it is there, not empty and not older than the launch; else TraceUnfitError with the cause."""
    if not report.is_file():
        raise _missing(nsys, report, log)
    state = report.stat()
    if state.st_mtime < started - FRESH_SLACK_SECONDS:
        raise TraceUnfitError("the report is older than the launch", where=str(report),
                              accepted="one written by this launch", next_step="read the log of nsys beside it")
    if state.st_size == 0:
        raise TraceUnfitError("the report is empty", where=str(report), accepted="a finished report",
                              next_step="look for a full disk, or for nsys having been killed")
    return report


def _missing(nsys: Nsys, report: Path, log: str) -> TraceUnfitError:
    """Why there is no report, from what nsys printed; the causes in the order in which one hides another."""
    where = str(report)
    if _blames_gpu_metrics(log):
        return TraceUnfitError("nsys refused to sample GPU counters", where=where,
                               accepted="a GPU whose counters this user may read",
                               next_step=nsys.gpu_metrics_obstacle or "trace without GPU metrics")
    if refused := re.search(r"^(unrecogni[sz]ed option.*|Illegal -.*)$", log, flags=re.MULTILINE):
        return TraceUnfitError(f"nsys {nsys.version} refused a flag: {refused[1]}", where=where,
                               next_step="set REGRESS_NSYS to a release in docs/nsys.md")
    if raw := _raw_report(report, log):
        return TraceUnfitError(f"nsys left only the raw {raw}", where=where, accepted="a finished report",
                               next_step=nsys.importer.obstacle or f"see whether {nsys.importer.path} runs")
    if failed := re.search(r"^Failed to create '(.+?)': (.+?)\.?$", log, flags=re.MULTILINE):
        elsewhere = re.search(rf"^\s+(/\S+{re.escape(REPORT_SUFFIX)})$", log, flags=re.MULTILINE)
        return TraceUnfitError(f"nsys could not create it: {failed[2]}", where=where,
                               next_step=f"the report went to {elsewhere[1]}" if elsewhere else "free the path")
    if re.search(r"^\s*(No reports were generated\.?|Generated:)\s*\Z", log, flags=re.MULTILINE):
        return TraceUnfitError("no process opened the capture range, so nothing was recorded", where=where,
                               accepted="cudaProfilerStart called by a rank while CUDA is traced",
                               next_step="see whether the ranks reached their timed part, and ran on a GPU")
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "nothing")
    return TraceUnfitError(f"nsys wrote no report; the last it printed: {last.strip()[:200]}", where=where,
                           next_step="read the log of nsys beside it")


def _blames_gpu_metrics(log: str) -> bool:
    return bool(re.search(r"Illegal --gpu-metrics-|ERR_NVGPUCTRPERM|Insufficient privilege", log, flags=re.IGNORECASE))


def _raw_report(report: Path, log: str) -> Path | None:
    """The `.qdstrm` that was not turned into a report: beside it, or where the log says it was generated."""
    beside = report.with_suffix(".qdstrm")
    named = (Path(path) for path in re.findall(r"'?(/[^'\n]+?\.qdstrm)'?\s*$", log, flags=re.MULTILINE))
    return next((path for path in (beside, *named) if path.is_file()), None)
