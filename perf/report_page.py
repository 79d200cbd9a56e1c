"""How big a report is, how long it takes to make, and how soon a cold browser shows its first chart.

python perf/report_page.py [SERIES COMMITS]      default: 60 series of 2,000 commits, five launches each.

Prints one line for the page and one for each cold load of Debian's chromium (a new empty profile each time), the
median last. The aim on a 2-core machine: under 4 MB, first chart within 1.5 s.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Playwright, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from regress.publish.html import build_report
from tests.html.conftest import CHROMIUM, FLAGS
from tests.html.histories import wide

LOADS = 7


def first_chart_seconds(playwright: Playwright, page_file: Path) -> float:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.goto(page_file.as_uri())
    drawn = page.wait_for_selector("html[data-first-chart]", timeout=60_000)
    assert drawn is not None
    seconds = float(drawn.get_attribute("data-first-chart") or "nan") / 1000
    browser.close()
    return seconds


def main(series: int, commits: int) -> None:
    history = list(wide(series, commits))
    began = time.perf_counter()
    html = build_report(history, commit_url_template="https://example.com/{sha}")
    made = time.perf_counter() - began
    print(f"{series} series x {commits} commits: {len(html.encode()) / 1e6:.2f} MB, made in {made:.1f} s")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "report.html"
        page_file.write_text(html, encoding="utf-8")
        loads = [first_chart_seconds(playwright, page_file) for _ in range(LOADS)]
    for seconds in loads:
        print(f"first chart after {seconds:.2f} s")
    print(f"median {statistics.median(loads):.2f} s, worst {max(loads):.2f} s")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:3])) if len(sys.argv) > 2 else main(60, 2_000)
