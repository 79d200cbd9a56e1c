"""What a reader sees, hears and can reach, in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from regress.publish.html import Limits, build_report
from regress.record import Run
from regress.trend import ChangePoint
from tests.html.conftest import Reader
from tests.html.histories import HOSTILE, allreduce, sha, story, trace_view, wide

COMMITS = "https://example.com/commit/{sha}"
SLOW = (allreduce(2**24).id, "allreduce_seconds")


def page_of(runs: list[Run]) -> str:
    return build_report(runs, commit_url_template=COMMITS, trace=trace_view(),
                        change_points={SLOW: [ChangePoint("run-00114", 0.2)]}, limits={SLOW: Limits(None, 9e-5)})


@pytest.fixture(scope="module")
def told() -> str:
    return page_of(story())


def test_first_screen_answers_without_scrolling(reader: Reader, told: str) -> None:
    opened = reader.open(told)
    text = opened.page.locator("#first-screen").inner_text()
    for answer in ("Slower: 2 of 20 series regressed", f"Since {sha(114)[:9]} Tidy the docs (part 114)",
                   "nccl 2.28.3 → 2.29.1", "NCCL picks another protocol",
                   "Yes. Nothing on this run speaks against it."):
        assert answer in text
    heights = opened.page.evaluate("() => ['.verdict', '.why', '.machine', '#overview tbody tr']"
                                   ".map((part) => document.querySelector(part).getBoundingClientRect().bottom)")
    assert max(heights) <= 800
    assert opened.complaints == []
    assert opened.requests == []


def test_the_worst_series_is_drawn_with_every_run_and_launch(reader: Reader, told: str) -> None:
    opened = reader.open(told)
    counts = opened.chart_counts()
    assert (counts["points"], counts["launches"], counts["median"]) == (120, 600, 120)
    assert opened.page.locator(".panel h3").inner_text().startswith("allreduce[16MiB-float32-2xcuda] allreduce_seconds")


def test_shapes_tell_verdicts_apart(reader: Reader, told: str) -> None:
    markers = reader.open(told).page.evaluate("""() => {
        const {renderers} = document.querySelector('.panel .plot').bokehView.model;
        return [...renderers.find((r) => r.name === 'points').data_source.get('marker')];
    }""")
    assert {m: markers.count(m) for m in set(markers)} == {"circle": 111, "square": 6, "diamond": 2, "x": 1}


def test_words_on_the_chart(reader: Reader, told: str) -> None:
    words = reader.open(told).page.evaluate("""() => {
        const {center, above, below, left, right, renderers} = document.querySelector('.panel .plot').bokehView.model;
        return [...center, ...above, ...below, ...left, ...right, ...renderers].map((part) => part.text)
            .filter((text) => typeof text === 'string');
    }""")
    assert {"nccl 2.28.3 → 2.29.1", "driver 570.124.06 → 575.51.03", "anchor: fused optimizer is faster",
            "+20.0 % step", "ceiling 90.0 µs"} <= set(words)


def test_hover_tells_everything_about_a_run(reader: Reader, told: str) -> None:
    opened = reader.open(told)
    opened.page.mouse.move(*opened.point_on_screen(114))
    box = opened.page.locator(".panel .floating")
    box.wait_for(state="visible")
    text = box.inner_text()
    for fact in (f"{sha(114)[:9]} Tidy the docs (part 114)", "Dev 4", "median of 5", "67.9 µs", "regression",
                 "NVIDIA H200", "nccl 2.29.1", "+20."):
        assert fact in text


def test_click_opens_the_commit(reader: Reader, told: str) -> None:
    opened = reader.open(told)
    opened.context.route("https://example.com/**", lambda route: route.fulfill(body="the commit"))
    place = opened.point_on_screen(114)
    with opened.context.expect_page() as popup:
        opened.page.mouse.click(*place)
    assert popup.value.url == f"https://example.com/commit/{sha(114)}"


def test_keyboard_reaches_a_row_its_chart_and_its_runs(reader: Reader, told: str) -> None:
    opened = reader.open(told)
    keyboard = opened.page.keyboard
    opened.page.locator("#filter").focus()
    keyboard.type("exposed_comm")
    assert opened.page.locator("#overview tbody tr:visible").count() == 1
    keyboard.press("Tab")
    keyboard.press("Tab")
    keyboard.press("Enter")
    figure = opened.page.locator(".panel .figure").first
    opened.page.wait_for_function("() => document.activeElement.className === 'figure'")
    keyboard.press("End")
    assert f"{sha(119)[:9]} Log less (part 119)" in opened.page.locator(".readout").first.inner_text()
    keyboard.press("ArrowLeft")
    assert sha(118)[:9] in opened.page.locator(".readout").first.inner_text()
    opened.context.route("https://example.com/**", lambda route: route.fulfill(body="the commit"))
    with opened.context.expect_page() as popup:
        keyboard.press("Enter")
    assert popup.value.url.endswith(sha(118))
    assert "Arrow keys" in (figure.get_attribute("aria-label") or "")
    opened.page.bring_to_front()
    figure.focus()
    keyboard.press("Escape")
    assert opened.page.locator(".panel").count() == 1
    assert opened.complaints == []


def test_a_metric_that_comes_and_goes_breaks_its_line(reader: Reader, told: str) -> None:
    opened = reader.open(told)
    opened.page.locator("#filter").fill("exposed_comm")
    opened.page.locator(".open:visible").click()
    opened.page.wait_for_selector(".panel[data-points='105']")
    line = opened.page.evaluate("""() => {
        const {renderers} = document.querySelector('.panel .plot').bokehView.model;
        return [...renderers.find((r) => r.name === 'median').data_source.get('y')].map((y) => Number.isNaN(y));
    }""")
    assert line[60:75] == [True] * 15
    assert sum(line) == 16, "fifteen runs without it and one invalid run"


def test_time_log_compare_and_range(reader: Reader, told: str) -> None:
    opened = reader.open(told)
    page = opened.page
    page.get_by_role("button", name="time", exact=True).click()
    page.get_by_role("button", name="log", exact=True).click()
    page.get_by_label("Compare with").select_option(label="allreduce[4MiB-float32-2xcuda] allreduce_seconds")
    page.wait_for_function("""() => document.querySelector('.panel .plot').bokehView.model.renderers
        .filter((r) => r.name === 'points').length === 2""")
    axes = page.evaluate("""() => {
        const {model} = document.querySelector('.panel .plot').bokehView;
        return [...model.xaxes, ...model.yaxes].map((axis) => axis.type);
    }""")
    assert axes == ["DatetimeAxis", "LogAxis"]
    page.get_by_role("button", name="commits", exact=True).click()
    page.get_by_label("From commit").fill(sha(100)[:8])
    page.get_by_label("From commit").press("Enter")
    page.wait_for_function("""() => {
        const {x_range: range} = document.querySelector('.panel .plot').bokehView.model;
        return range.start > 99 && range.start < 100 && range.end > 119;
    }""")
    assert opened.complaints == []


def test_two_machines_on_one_chart_and_branches_off_the_line(reader: Reader) -> None:
    runs = story(60)
    for i in range(1, 60, 3):
        runs[i] = replace(runs[i], environment=replace(
            runs[i].environment, must_match={**runs[i].environment.must_match, "gpu_model": "NVIDIA B200"}))
    runs[2] = replace(runs[2], commit=replace(runs[2].commit, main=False, branch="try-it"))
    opened = reader.open(page_of(runs))
    other = runs[1].environment.fingerprint[:6]
    opened.page.get_by_label("Compare with").select_option(
        label=f"allreduce[16MiB-float32-2xcuda] allreduce_seconds on environment {other}")
    counts = """() => Object.groupBy(document.querySelector('.panel .plot').bokehView.model.renderers
        .filter((r) => ['points', 'median'].includes(r.name)).map((r) => [r.name, r.data_source.get_length()]),
        ([name]) => name)"""
    opened.page.wait_for_function("""() => document.querySelector('.panel .plot').bokehView?.model.renderers
        .filter((r) => r.name === 'points').length === 2""")
    assert opened.page.evaluate(counts) == {"points": [["points", 40], ["points", 20]],
                                            "median": [["median", 39], ["median", 20]]}
    assert "other branches" in opened.page.locator(".legend").first.inner_text()
    assert opened.complaints == []


def test_table_under_the_chart_and_links(reader: Reader, told: str) -> None:
    opened = reader.open(told)
    opened.page.get_by_text("Table of the runs").click()
    rows = opened.page.locator(".points-table tbody tr")
    rows.first.wait_for()
    assert rows.count() == 120
    assert rows.first.locator("a").get_attribute("href") == f"https://example.com/commit/{sha(119)}"
    assert "regression" in rows.first.inner_text()


def test_sweep_and_trace(reader: Reader, told: str) -> None:
    opened = reader.open(told)
    sweeps, trace = opened.page.locator("#sweeps"), opened.page.locator("#trace")
    sweeps.scroll_into_view_if_needed()
    sweeps.locator("canvas, .bk-Figure").first.wait_for()
    sweeps.get_by_text("Table").first.click()
    assert re.search(r"16MiB\s+206 GB/s\s+247 GB/s\s+-16\.\d %\s+2\d\d GB/s\s+45\.\d %", sweeps.inner_text())
    trace.scroll_into_view_if_needed()
    trace.locator("canvas, .bk-Figure").first.wait_for()
    assert "Rank 1 arrives last in 17 of 24 collectives" in trace.inner_text()
    assert "Try: set NCCL_PROTO=^SIMPLE" in trace.inner_text()
    assert opened.complaints == []


@pytest.mark.parametrize("width", [400, 768, 1920])
def test_no_sideways_scrolling(reader: Reader, told: str, width: int) -> None:
    opened = reader.open(told, width=width)
    for target in ("sweeps", "trace"):
        opened.page.locator(f"#{target}").scroll_into_view_if_needed()
        opened.page.locator(f"#{target} .bk-Figure").first.wait_for()
    assert opened.page.evaluate("() => document.documentElement.scrollWidth") == width


def test_colours_follow_the_system_and_the_button(reader: Reader, told: str) -> None:
    opened = reader.open(told, dark=True)
    ground = "() => getComputedStyle(document.body).backgroundColor"
    fill = "() => document.querySelector('.panel .plot').bokehView.model.background_fill_color"
    assert opened.page.evaluate(ground) == "rgb(20, 23, 27)"
    assert opened.page.evaluate(fill) == "#1c2025"
    opened.page.locator("#theme").click()
    opened.page.wait_for_function("() => document.querySelector('.panel .plot').bokehView?.model"
                                  ".background_fill_color === '#ffffff'")
    assert opened.page.evaluate(ground) == "rgb(246, 247, 249)"


def test_a_finger_s_first_tap_tells_and_its_second_opens(reader: Reader, told: str) -> None:
    opened = reader.open(told, width=400, touch=True)
    opened.context.route("https://example.com/**", lambda route: route.fulfill(body="the commit"))
    place = opened.point_on_screen(119)
    opened.page.touchscreen.tap(*place)
    box = opened.page.locator(".panel .readout")
    box.locator("dd").first.wait_for()
    # Neighbours are closer than a finger is wide: whichever run it told about is the one that opens.
    told_commit = box.locator("dd").first.inner_text().split()[0]
    opened.page.wait_for_timeout(500)
    with opened.context.expect_page() as popup:
        opened.page.touchscreen.tap(*place)
    assert told_commit in popup.value.url


def test_hostile_text_stays_text(reader: Reader) -> None:
    runs = [replace(run, commit=replace(run.commit, subject=HOSTILE, author=HOSTILE, branch=HOSTILE),
                    environment=replace(run.environment, reported={**run.environment.reported, "host": HOSTILE}),
                    warnings=(HOSTILE,), run_id=run.run_id + HOSTILE,
                    findings=tuple(replace(f, reason=HOSTILE) for f in run.findings)) for run in story(30)]
    opened = reader.open(page_of(runs))
    opened.page.get_by_text("Table of the runs").click()
    opened.page.locator(".points-table tbody tr").first.wait_for()
    opened.page.mouse.move(*opened.point_on_screen(20))
    opened.page.locator(".panel .floating").wait_for(state="visible")
    assert opened.page.title() == "comm-regress: history of GPU communication"
    assert opened.page.locator("img").count() == 0
    assert "</script><img src=x" in opened.page.locator("#first-screen").inner_text()
    assert "</script><img src=x" in opened.page.locator(".panel .floating").inner_text()
    assert "\u202e" not in opened.page.locator("body").inner_text()
    assert opened.complaints == []
    assert opened.requests == []


def test_nothing_but_the_page_s_own_scripts_may_run(reader: Reader, told: str) -> None:
    opened = reader.open(told.replace("<main>", "<main><script>document.title = 'owned'</script>"))
    assert opened.page.title() == "comm-regress: history of GPU communication"
    assert any("Content Security Policy" in complaint for complaint in opened.complaints)


def test_a_link_names_a_chart(reader: Reader, told: str) -> None:
    button = re.search(r'data-series="(\w+)"[^>]*>ddp_step\[bf16-2xcuda\] <b>step_seconds', told)
    assert button is not None
    opened = reader.open(told, fragment=f"#series-{button[1]}")
    assert "step_seconds" in opened.page.locator(".panel h3").inner_text()


def test_empty_and_single(reader: Reader) -> None:
    empty = reader.open(build_report([]), chart=False)
    assert "No runs yet" in empty.page.locator("h1").inner_text()
    assert empty.complaints == []
    single = reader.open(build_report(story()[-1:]))
    assert "First look" in single.page.locator("h1").inner_text()
    assert single.chart_counts()["points"] == 1
    assert single.complaints == []


def test_ten_thousand_runs_open_on_their_end(reader: Reader) -> None:
    opened = reader.open(build_report(wide(2, 10_000, launches=3)))
    assert opened.chart_counts()["points"] == 10_000
    start, end = opened.page.evaluate("""() => {
        const {x_range: range} = document.querySelector('.panel .plot').bokehView.model;
        return [range.start, range.end];
    }""")
    assert 9_700 < start < 9_990 < end < 10_005
    assert opened.complaints == []


def test_sixty_series_of_two_thousand_commits(reader: Reader) -> None:
    html = build_report(wide(60, 2_000, launches=2), commit_url_template=COMMITS)
    assert len(html.encode()) < 4_000_000
    opened = reader.open(html)
    assert opened.chart_counts()["points"] == 2_000
    assert opened.page.locator(".panel").count() == 1, "the other series wait until somebody opens them"
    assert opened.complaints == []
