"""The embedded data can be read back by anybody, as docs/report-data.md says."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
from itertools import accumulate
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from regress.publish.html import Limits, build_report
from regress.publish.html.data_block import FINEST, pack, pack_points, value_step
from regress.record import Run, Verdict
from regress.trend import ChangePoint, Point
from tests.html.histories import STEP, allreduce, busbw, run, seconds, trace_view

GOLDEN = Path(__file__).parent.parent / "data" / "html" / "data_block.json"
SLOW = (allreduce(2**24).id, "allreduce_seconds")


def unpack(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def embedded(html: str) -> Any:
    match = re.search(r'<script type="application/json" id="comm-regress-data">(.*?)</script>', html, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def opened(block: Any) -> Any:
    """The block with its packed parts unpacked."""
    return {**block, "runs": unpack(block["runs"]), "environments": unpack(block["environments"]),
            "series": [{**series, "points": unpack(series["points"])} for series in block["series"]]}


def small_history() -> list[Run]:
    rng = random.Random(1)  # noqa: S311 - noise, not secrets
    plans = (seconds(allreduce(2**24), "allreduce_seconds", 68e-6, steps=((6, 1.2),)),
             busbw(allreduce(2**24), 247e9, absent=frozenset({2})),
             seconds(STEP, "step_seconds", 0.042, judged=False))
    return [run(plans, i, rng, launches=3, invalid=i == 5, reported={"nccl_version": "2.29.1"} if i > 5 else None)
            for i in range(7, -1, -1)]


def small_report() -> str:
    return build_report(small_history(), commit_url_template="https://example.com/{sha}",
                        trace=trace_view(collectives=2), limits={SLOW: Limits(None, 9e-5)},
                        change_points={SLOW: [ChangePoint("run-00006", 0.2), ChangePoint("gone", 0.1)]})


def test_golden_block() -> None:
    """Regenerate on purpose only: a change of these keys is a change of the documented schema."""
    block = opened(embedded(small_report()))
    block["trace"]["strips"] = [{**strip, "compute": strip["compute"][:2], "communication": strip["communication"][:2]}
                                for strip in block["trace"]["strips"]]
    assert block == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_values_come_back_as_the_documentation_says() -> None:
    series = next(s for s in embedded(small_report())["series"] if (s["case"], s["metric"]) == SLOW)
    points = unpack(series["points"])
    whole = list(accumulate(points["value"]))
    stored = [[m.value for m in r.measured(*SLOW)] for r in reversed(small_history())]
    launches = iter(points["launches"])
    for number, count, values in zip(whole, points["launch_count"], stored, strict=True):
        read = [(number + next(launches)) * series["step"] for _ in range(count)]
        assert all(abs(a - b) <= series["step"] * 0.51 for a, b in zip(read, values, strict=True))
    assert list(accumulate(points["run"])) == list(range(8))


def test_the_same_history_gives_the_same_bytes() -> None:
    assert small_report() == small_report()
    assert pack({"a": [1, None, "ü"]}) == pack({"a": [1, None, "ü"]})


@settings(deadline=None)
@example([[5e-324]], None)
@given(st.lists(st.lists(st.floats(0, 1e15) | st.just(0.0), min_size=1, max_size=4), min_size=1, max_size=20),
       st.sampled_from([None, *Verdict]))
def test_any_values_survive_to_their_resolution(rows: list[list[float]], verdict: Verdict | None) -> None:
    points = [Point(i * 2, sorted(row)[len(row) // 2], tuple(row), verdict) for i, row in enumerate(rows)]
    step = value_step(points)
    packed = json.loads(json.dumps(pack_points(points, step)))
    launches = iter(packed["launches"])
    largest = max(max(row) for row in rows)
    for number, row in zip(accumulate(packed["value"]), rows, strict=True):
        for value in row:
            assert abs((number + next(launches)) * step - value) <= 0.51 * step + 1e-9 * largest
    assert list(accumulate(packed["run"])) == [i * 2 for i in range(len(rows))]
    smallest = min((v for row in rows for v in row if v), default=1.0)
    assert step <= (1 + 1e-9) * max(1e-4 * smallest, 1e-12 * largest, FINEST)


def test_hostile_strings_cannot_leave_the_script_element() -> None:
    html = build_report(small_history(), commit_url_template="https://example.com/</script><script>{sha}")
    block = embedded(html)
    assert block["commit_url"] == "https://example.com/</script><script>{sha}"
    assert html.count("</script>") == 4


def test_links_only_to_the_web() -> None:
    for template in ("javascript:alert('{sha}')", "https://example.com/fixed", "file:///{sha}"):
        assert embedded(build_report(small_history(), commit_url_template=template))["commit_url"] is None
