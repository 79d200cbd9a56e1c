"""A profiler that fails in any way: the verdict is what it would have been, and the reason is a warning.

Launches are recorded ones; only the traced one is really run under a stand-in for nsys.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import regress.gate_items
import regress.trace.nsys_run
import regress.tracing
from regress.errors import EXIT_REGRESSION, EnvironmentUnfitError, MeasurementError, UsageError
from regress.measure.launch import Launcher, LaunchResult
from regress.measure.replay import ReplayLauncher
from regress.record import LaunchSpec
from regress.session import Gate, GateRequest
from regress.trace.nsys import probe
from regress.trace.nsys_export import export_sqlite
from regress.tracing import Tracer, choose_tracer
from tests.acceptance import stage
from tests.acceptance.conftest import Theatre
from tests.acceptance.recordings import ALLREDUCE
from tests.trace_nsys.fake import WRITE_REPORT, Fake


class Profiled:
    """Plays launches; what the traced one is wrapped in is run around a program that does nothing."""

    def __init__(self, player: Launcher) -> None:
        self._player = player

    def launch(self, spec: LaunchSpec, *, command_prefix: tuple[str, ...] = (), **settings: Any) -> LaunchResult:
        played = self._player.launch(spec, **settings)
        if not command_prefix:
            return played
        log = Path(spec.results_dir) / "agent" / "output.log"
        log.parent.mkdir(parents=True)
        with log.open("wb") as output:
            try:
                done = subprocess.run((*command_prefix, "true"), stdout=output, stderr=output, check=False)
            except OSError as error:  # as the real launcher has it
                raise MeasurementError(f"{command_prefix[0]} cannot be run: {error.strerror}") from error
        return replace(played, command_exit=done.returncode)


Profile = Callable[[Fake], Path]


@pytest.fixture
def profiled(theatre: Theatre, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """Puts a stand-in for nsys into the next gate; its path."""
    theatre.baseline()

    def put(fake: Fake) -> Path:
        path = fake.install(tmp_path_factory.mktemp("nsys"))
        nsys, install = probe(path), stage.install

        def with_nsys(patch: Callable[[object, str, object], None], scenario: stage.Scenario) -> None:
            install(patch, scenario)
            staged: Any = regress.gate_items.open_session_gate  # type: ignore[attr-defined]

            def open_gate(request: GateRequest) -> Gate:
                gate: Gate = staged(request)
                gate.factory = lambda _: Profiled(ReplayLauncher.from_files([Path(scenario.recording)]))
                gate.tracer = Tracer("nsys", nsys)
                return gate

            patch(regress.gate_items, "open_session_gate", open_gate)

        monkeypatch.setattr(stage, "install", with_nsys)
        return path

    return put


@dataclass(frozen=True, slots=True)
class Fault:
    """What the stand-in does, and what must be said."""

    said: str
    profile: str = WRITE_REPORT
    export: str = 'cp "$database" "$output"'


FAULTS: Mapping[str, Fault] = {
    "no report": Fault("no process opened the capture range", profile=r'printf "Generated:\n"'),
    "killed": Fault("nsys wrote no report", profile="echo collecting; kill -9 $$"),
    "report cut": Fault("could not export it: the report is truncated",
                        export='echo "the report is truncated"; exit 1'),
    "counters refused": Fault("nsys refused to sample GPU counters", profile="echo ERR_NVGPUCTRPERM; exit 1"),
    "folder refused": Fault("nsys could not create it: Permission denied",
                            profile="""printf "Failed to create '$output': Permission denied.\\n" """),
    "disk full while recording": Fault("the report is empty", profile=': > "$output"'),
    "disk full while exporting": Fault("could not export it: No space left on device", export=(
        'head -c 100 "$database" > "$output"; echo "No space left on device"; exit 1')),
    "export of nothing": Fault("could not export it: nothing was printed", export="true"),
    "export that does not end": Fault("it had not ended after 0 s", export="exec sleep 60"),
    "an export without events": Fault("its trace cannot be used"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_verdict_depends_on_it(theatre: Theatre, profiled: Profile, monkeypatch: pytest.MonkeyPatch,
                                  fault: str) -> None:
    monkeypatch.setattr(regress.trace.nsys_run, "export_sqlite", functools.partial(export_sqlite, timeout=0.4))
    profiled(Fake(profile=FAULTS[fault].profile, export=FAULTS[fault].export))
    done = theatre.gate()
    assert done.ret == 0, done.stdout.str()
    done.stdout.fnmatch_lines([f"warning: *{FAULTS[fault].said}*", "comm-regress: 3 unchanged (status 0)"])
    assert len(theatre.runs()) == 4


def test_a_regression_stays_one(theatre: Theatre, profiled: Profile) -> None:
    theatre.play({ALLREDUCE: 1.6})
    profiled(Fake(profile="kill -9 $$"))
    assert theatre.gate().ret == EXIT_REGRESSION


def test_one_that_is_gone_after_it_was_found(theatre: Theatre, profiled: Profile,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    path = profiled(Fake())
    path.unlink()
    monkeypatch.setattr(regress.tracing, "profile_command", lambda *_, **__: (str(path), "profile"))
    done = theatre.gate()
    assert done.ret == 0, done.stdout.str()
    done.stdout.fnmatch_lines(["warning: no trace of this run: *nsys cannot be run: No such file or directory*",
                               "comm-regress: 3 unchanged (status 0)"])


def test_a_traced_launch_that_ends_badly_keeps_its_trace_and_says_so(theatre: Theatre, profiled: Profile) -> None:
    profiled(Fake(profile=f"{WRITE_REPORT}; exit 7"))
    done = theatre.gate()
    assert done.ret == 0, done.stdout.str()
    done.stdout.fnmatch_lines(["warning: *the traced launch ended with status 7*"])


def test_a_machine_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by name it is refused before anything is measured; else torch.profiler explains the run."""
    monkeypatch.setattr(regress.tracing, "find", lambda: None)
    with pytest.raises(UsageError, match="no nsys was found") as caught:
        choose_tracer("nsys", "cpu")
    assert caught.value.exit_status == 4
    chosen = choose_tracer("auto", "cuda")
    assert (chosen.kind, len(chosen.warnings)) == ("kineto", 1)
    assert "no nsys was found, so torch.profiler explains this run" in chosen.warnings[0]


def test_one_that_was_named_and_does_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nsys").write_text("no program")
    monkeypatch.setenv("REGRESS_NSYS", str(tmp_path / "nsys"))
    with pytest.raises(EnvironmentUnfitError, match="is no nsys that runs") as caught:
        choose_tracer("nsys", "cpu")
    assert caught.value.exit_status == 4


def test_one_whose_importer_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nsys = probe(Fake(files=("host-linux-x64/other",)).install(tmp_path / "nsys"))
    assert nsys is not None
    broken = replace(nsys, importer=replace(nsys.importer, hidden=False))
    monkeypatch.setattr(regress.tracing, "find", lambda: broken)
    with pytest.raises(UsageError, match="cannot write reports: this nsys comes without its importer"):
        choose_tracer("nsys", "cpu")
    assert choose_tracer("auto", "cuda").kind == "kineto"
