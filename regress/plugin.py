"""The pytest plugin: `pytest --comm-regress` runs the gate alone, one item a case, or its selftest, one item a fault.

Idle it costs an import of this file and of pytest, which is there already: everything else is imported when the
gate is really asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from regress.gate_options import GATE_OPTIONS

if TYPE_CHECKING:
    from regress.gate_items import GateRun
    from regress.selftest_items import SelftestRun

    _RUN: pytest.StashKey[GateRun | SelftestRun]

_RUN = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the gate's options under one prefix."""
    group = parser.getgroup("comm-regress", "comm-regress (performance gate for GPU communication)")
    group.addoption("--comm-regress", action="store_true", help="run the communication gate instead of the tests")
    group.addoption("--comm-regress-selftest", action="store_true",
                    help="with --comm-regress: inject known faults here instead and pass where the gate catches them")
    for name, settings in GATE_OPTIONS:
        group.addoption(f"--comm-regress-{name}", **settings)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers that select cases with -m."""
    for marker in ("comm_regress: a case of the communication gate", "collective: a collective micro-benchmark",
                   "step: a training step", "cuda: runs on GPUs", "cpu: runs on the CPU"):
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Refuses what cannot mean anything before anything is measured; a status ends pytest, None lets it go on."""
    given = [f"--comm-regress-{name}" for name, settings in GATE_OPTIONS
             if config.getoption(f"--comm-regress-{name}") not in (None, settings.get("default"))]
    selftest = config.getoption("--comm-regress-selftest")
    if not config.getoption("--comm-regress"):
        flags = [*(["--comm-regress-selftest"] if selftest else []), *given]
        if flags:
            raise pytest.UsageError(f"{flags[0]} without --comm-regress measures nothing; add --comm-regress")
        return None
    foreign = [flag for flag in given if flag != "--comm-regress-device"]
    if selftest and foreign:
        raise pytest.UsageError(f"{foreign[0]} with --comm-regress-selftest: its thresholds, history and launches are "
                                "its own; accepted beside it: --comm-regress-device")
    workers, places = config.getoption("numprocesses", None), config.getoption("tx", None)
    if workers or places:
        what, flag = (f"-n {workers}", "-n") if workers else ("--tx", "--tx")
        raise pytest.UsageError(
            f"--comm-regress with {what}: cases would compete for the GPUs and time each other; "
            f"run it without xdist's {flag}")
    if config.getoption("--help") or config.getoption("--version"):
        return None
    chosen = {name: config.getoption(f"--comm-regress-{name}") for name, _ in GATE_OPTIONS}
    # pytest turns neither into a clean end before its session has begun.
    try:
        if selftest:
            from regress.selftest_items import SelftestRun

            config.stash[_RUN] = SelftestRun.on(chosen["device"])
        else:
            from regress.gate_items import open_gate

            config.stash[_RUN] = open_gate(config, chosen)
    except KeyboardInterrupt:
        sys.stderr.write("comm-regress: interrupted before anything was measured\n")
        return int(pytest.ExitCode.INTERRUPTED)
    except pytest.exit.Exception as stopped:
        sys.stderr.write(f"{stopped}\n")
        return stopped.returncode
    return None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Devices, link, backend, versions and the age of the baseline."""
    run = config.stash.get(_RUN, None)
    return [] if run is None else [f"comm-regress: {line}" for line in run.header]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> bool | None:
    """Collects the cases and nothing else: no test file is imported."""
    run = session.config.stash.get(_RUN, None)
    if run is None:
        return None
    session.items = run.collect(session)
    hook = session.config.hook
    hook.pytest_collection_modifyitems(session=session, config=session.config, items=session.items)
    hook.pytest_collection_finish(session=session)
    session.testscollected = len(session.items)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Measures all selected cases, then lets pytest report them one by one."""
    run = session.config.stash.get(_RUN, None)
    with ExitStack() as stack:
        if run is not None and not session.config.option.collectonly and session.items:
            stack.enter_context(run.around(session))
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None],
                              ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The case's own words in place of tracebacks and of lines of this plugin."""
    report = yield
    if _RUN in item.config.stash:
        from regress.pytest_items import reword

        reword(report, call.excinfo)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport,
                             config: pytest.Config) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """The word and letter of a case: what passed because there was nothing to compare with says so."""
    run = config.stash.get(_RUN, None)
    return None if run is None else run.status_words(report)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Sets status 10 before the summary is written, so that the summary and the process agree."""
    run = session.config.stash.get(_RUN, None)
    if run is not None:
        run.set_exit_status(session)
    yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table, worst first, one summary line, and where everything was written."""
    run = config.stash.get(_RUN, None)
    if run is not None:
        run.summarise(terminalreporter)
