"""A real Chromium that opens generated pages and writes down whatever it complains about or asks the network for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]
PATIENCE_MS = 60_000


def _unavailable(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Started once with an empty profile, which Playwright makes and removes."""
    if shutil.which(CHROMIUM) is None:
        _unavailable(f"{CHROMIUM} is not installed (Debian's package chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _unavailable("the Python package playwright is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@dataclass(slots=True)
class Opened:
    """A page as a reader has it. complaints: console errors and uncaught exceptions. requests: beyond the file."""

    page: Page
    context: BrowserContext
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def wait_for_chart(self) -> None:
        self.page.wait_for_selector("html[data-first-chart]", timeout=PATIENCE_MS)

    def chart_counts(self) -> dict[str, int]:
        """How many points each named part of the open charts has, read from Bokeh's own models."""
        found = self.page.evaluate("""() => {
            const counts = {};
            for (const plot of document.querySelectorAll('.panel .plot'))
                for (const renderer of plot.bokehView.model.renderers)
                    if (renderer.name) counts[renderer.name] = renderer.data_source.get_length();
            return counts;
        }""")
        return {str(name): int(count) for name, count in found.items()}

    def point_on_screen(self, index: int) -> tuple[float, float]:
        """Where the index-th point of the open chart is, in pixels of the window."""
        x, y = self.page.evaluate("""(index) => {
            const plot = document.querySelector('.panel .plot');
            plot.scrollIntoView({block: 'center'});
            const view = plot.bokehView;
            const points = view.model.renderers.find((renderer) => renderer.name === 'points').data_source;
            const box = plot.getBoundingClientRect();
            return [box.x + view.frame.x_scale.compute(points.get('x')[index]),
                    box.y + view.frame.y_scale.compute(points.get('y')[index])];
        }""", index)
        return float(x), float(y)


class Reader:
    """Opens HTML text the way a person opens the file."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser, self._folder = browser, folder
        self._contexts: list[BrowserContext] = []

    def open(self, html: str, *, width: int = 1280, height: int = 800, dark: bool = False, chart: bool = True,
             fragment: str = "", touch: bool = False) -> Opened:
        path = self._folder / f"report-{len(self._contexts)}.html"
        path.write_text(html, encoding="utf-8")
        context = self._browser.new_context(viewport={"width": width, "height": height},
                                            has_touch=touch, color_scheme="dark" if dark else "light")
        self._contexts.append(context)
        opened = Opened(context.new_page(), context)
        address = path.as_uri()

        def complain(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                opened.complaints.append(message.text)

        def note(request: Request) -> None:
            if not request.url.startswith((address, "data:", "blob:")):
                opened.requests.append(request.url)

        opened.page.on("console", complain)
        opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.page.on("request", note)
        opened.page.goto(address + fragment)
        if chart:
            opened.wait_for_chart()
        return opened

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def reader(chromium: Browser, tmp_path: Path) -> Iterator[Reader]:
    made = Reader(chromium, tmp_path)
    yield made
    made.close()
