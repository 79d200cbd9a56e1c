"""An endpoint that fails in any way costs a gate neither its verdict nor, where it may recover, its payload."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from regress.errors import EXIT_REGRESSION
from tests import servers
from tests.acceptance.conftest import Theatre
from tests.acceptance.recordings import ALLREDUCE, THRESHOLDS
from tests.publish.factory import Fault, faulty_server, http_answer

FAULTS: Mapping[str, tuple[Fault, str, bool]] = {
    "slow": (Fault(delay_s=30.0), "no complete answer within 0.5 s", True),
    "trickling": (Fault(http_answer("200 OK", b"x" * 50), trickle_s=0.1), "no complete answer within 0.5 s", True),
    "refusing": (Fault(http_answer("403 Forbidden", b"not you")), "the server said 403 not you", False),
    "not there": (Fault(http_answer("404 Not Found", b"")), "the server said 404", False),
    "failing": (Fault(http_answer("500 Oops", b"broken")), "the server said 500 broken", True),
    "overloaded": (Fault(http_answer("503 Busy", b"", Retry_After="120")), "the server said 503", True),
    "cut before the answer": (Fault(b""), "no answer", True),
    "cut inside the answer": (Fault(http_answer("200 OK", b"x" * 100)[:-50]), "no answer", True),
    "too talkative": (Fault(http_answer("400 Bad", b"x" * 10_000_000)), "the server said 400", False),
}
"""What the server does, what is said, and whether the payload waits for another try."""


def publishing(theatre: Theatre, url: str) -> None:
    (theatre.folder / "thresholds.yaml").write_text(
        f'{THRESHOLDS}publish: [{{sink: webhook, url: "{url}", all_branches: true, http: {{timeout: 500ms}}}}]\n')


@pytest.fixture
def measured(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> Theatre:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    theatre.baseline()
    return theatre


@pytest.mark.parametrize("fault", FAULTS)
def test_no_verdict_depends_on_it(measured: Theatre, fault: str) -> None:
    behaviour, said, kept = FAULTS[fault]
    with faulty_server(behaviour) as url:
        publishing(measured, url)
        done = measured.gate("--comm-regress-json=result.json")
    assert done.ret == 0, done.stdout.str()
    (warning,) = [text for text in measured.result()["warnings"] if "webhook" in text]
    assert said in warning
    assert len(warning) < 1500
    assert measured.result()["verdict"] == "pass"
    assert len(measured.runs()) == 4
    assert len(list((measured.folder / ".comm-regress" / "spool").glob("*.json"))) == int(kept)


def test_one_that_is_down_and_comes_back(measured: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be sent goes first with the next gate, once the pause is over."""
    publishing(measured, f"http://127.0.0.1:{servers.free_port()}")
    assert measured.gate().ret == 0
    (kept,) = (measured.folder / ".comm-regress" / "spool").glob("*.json")
    back = Fault()
    with faulty_server(back) as url:
        publishing(measured, url)
        content = json.loads(kept.read_bytes()) | {"destination": url, "not_before": 0.0}
        kept.write_text(json.dumps(content))
        assert measured.gate().ret == 0
    first, second = (json.loads(request.partition(b"\r\n\r\n")[2]) for request in back.requests)
    assert content["run_id"] in json.dumps(first)
    assert content["run_id"] not in json.dumps(second)
    assert not kept.exists()


def test_a_regression_stays_one_while_it_is_down(measured: Theatre) -> None:
    publishing(measured, f"http://127.0.0.1:{servers.free_port()}")
    measured.play({ALLREDUCE: 1.6})
    assert measured.gate().ret == EXIT_REGRESSION


def test_a_spool_that_is_in_the_way(measured: Theatre) -> None:
    (measured.folder / ".comm-regress" / "spool").write_text("a file")
    publishing(measured, f"http://127.0.0.1:{servers.free_port()}")
    done = measured.gate()
    assert done.ret == 0, done.stdout.str()
    done.stdout.fnmatch_lines(["warning: *the spool * does not take it (File exists)*"])
    assert len(measured.runs()) == 4
