"""The Markdown page: worst first, within bounds, and foreign text means nothing in it."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from regress.forge.markdown import Section, code, fitted, one_line, prose, table_row, utf8_bytes, utf16_units
from regress.forge.page import COMMENT_CHARACTERS, SUMMARY_BYTES, Surroundings, comment_page, summary_page
from regress.forge.result_file import read_result
from regress.forge.trend_blocks import BLOCKS, trend_blocks
from regress.record import Verdict
from tests.github.runs import HOSTILE, SLOW, big_result, recorded_json

OURS = {"h2", "h3", "p", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "code", "details", "summary",
        "strong", "a"}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        if not self.tags or self.tags[-1] != "code":
            self.texts.append(data)


def rendered(markdown: str) -> Tags:
    tags = Tags()
    tags.feed(MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough").render(markdown))
    return tags


def test_worst_case_comes_first_in_the_table() -> None:
    page = summary_page(read_result(recorded_json(), "made"), Surroundings())
    verdicts = re.findall(r"\| (REGRESSION|INCONCLUSIVE|PASS|NO BASELINE) \|", page)
    assert verdicts == ["REGRESSION", "INCONCLUSIVE", "NO BASELINE", "PASS"]


def test_the_page_says_why_what_to_try_and_how_to_measure_again() -> None:
    page = html.unescape(summary_page(read_result(recorded_json(), "made"), Surroundings(
        run_url="https://github.example.com/org/project/actions/runs/99")))
    assert "made to be regression" in page
    assert "try: bucket them" in page
    assert f"again: <code>pytest --comm-regress 'comm-regress::{SLOW.id}'</code>" in page
    assert "About 14 launches would decide it." in page
    assert "(https://github.example.com/org/project/actions/runs/99)" in page
    assert "exit status 1" in page


def test_an_unknown_exit_status_is_not_shown() -> None:
    assert "exit status" not in summary_page(read_result(recorded_json(), "made"), Surroundings(status_known=False))


@pytest.mark.parametrize("page", [summary_page, lambda result, around: comment_page(result, around, "<!-- m -->")])
def test_hostile_text_makes_no_markup_no_link_and_no_mention(page: object) -> None:
    assert callable(page)
    tags = rendered(page(big_result(3, HOSTILE), Surroundings()))
    assert set(tags.tags) <= OURS
    assert tags.links == []
    text = "".join(tags.texts)
    assert "@octocat" not in text
    assert "#12" not in text
    assert "://" not in text
    assert "www." not in text
    assert "\u202e" not in text


@given(st.text(max_size=60))
def test_any_text_reads_as_itself_in_prose_and_code(text: str) -> None:
    for escaped in (prose(text), code(text)):
        tags = rendered(f"x {table_row([escaped])}")
        assert set(tags.tags) <= {"p", "code"}
        assert "\n" not in escaped
    assert html.unescape(prose(text)).replace("\u200b", "") == one_line(text)
    assert html.unescape(code(text)) == f"<code>{one_line(text)}</code>"


def test_a_huge_result_stays_within_900_kib_and_says_what_is_left_out() -> None:
    page = summary_page(big_result(20_000, "x" * 200), Surroundings())
    assert SUMMARY_BYTES * 0.9 < utf8_bytes(page) <= SUMMARY_BYTES
    assert re.search(r"… and \d+ more rows, none of them worse: all are in the JSON result\.", page)
    assert "×" in page or "+" in page


def test_the_rows_that_are_kept_are_the_worst() -> None:
    page = summary_page(big_result(20_000), Surroundings())
    kept = [int(number) for number in re.findall(r"^\| ❌ \| <code>slower&#91;(\d+)&#93;", page, re.MULTILINE)]
    assert kept[0] == 19_999
    assert kept == list(range(19_999, 19_999 - len(kept), -1))


@pytest.mark.parametrize("text", ["slower", "\U0001f40c" * 300, HOSTILE])
def test_a_huge_comment_stays_within_60_000_characters(text: str) -> None:
    page = comment_page(big_result(3_000, text), Surroundings(), "<!-- marker -->")
    assert utf16_units(page) <= COMMENT_CHARACTERS
    assert page.startswith("<!-- marker -->\n")
    assert page.count("<details>") == page.count("</details>")


def test_what_passed_is_folded_away_in_a_comment() -> None:
    page = comment_page(big_result(4, verdict=Verdict.PASS), Surroundings())
    assert "<details><summary>4 more, unchanged or without baseline</summary>" in page


@given(st.lists(st.text("abé", max_size=30), max_size=30), st.integers(80, 400))
def test_a_fitted_document_is_never_longer_than_its_bound(items: list[str], limit: int) -> None:
    sections = [Section("head", tuple(items), "tail"), Section("other", tuple(items))]
    assert utf8_bytes(fitted(sections, limit, utf8_bytes)) <= limit


def test_a_trend_of_the_worst_three_is_drawn_when_history_is_given() -> None:
    result = big_result(5)
    trends = {(case.case, "allreduce_seconds"): [1.0, 1.0, 1.1] for case in result.cases}
    page = summary_page(result, Surroundings(trends))
    assert page.count("▁▁█") == 3
    assert "1.00 s to 1.10 s over 3 runs, oldest first" in page


def test_trend_blocks() -> None:
    assert trend_blocks([1, 2, 3, 4, 5, 6, 7, 8]) == BLOCKS
    assert trend_blocks([]) == ""
    assert trend_blocks([0.0, 0.0]) == "▁▁"
    assert trend_blocks([100.0, 100.1, 100.0]) == "▁▁▁"
    assert len(trend_blocks([1.0] * 500)) == 30
