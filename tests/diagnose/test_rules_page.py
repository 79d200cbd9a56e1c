"""docs/rules.md is what the rules say now of the samples, and what it says is what each sample was made for."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from regress.diagnose import Need, rules
from tests.diagnose.rules_page import NOT_APPLICABLE, PAIRS, main, needs_of_all, rows, rules_page

DOCS = Path(__file__).parents[2] / "docs"
LABELS = {"small_buckets": "small_collectives", "pageable": "pageable_copies", "sync_loop": "host_sync",
          "accum_sync": "accumulation", "straggler": "straggler", "micro_1channel": "few_channels"}


@cache
def _table() -> dict[str, dict[str, str] | None]:
    return dict(rows())


def test_the_page_in_docs_is_up_to_date() -> None:
    assert (DOCS / "rules.md").read_text(encoding="utf-8") == rules_page(), "run `make docs`"


def test_make_docs_writes_it(tmp_path: Path) -> None:
    main(tmp_path)
    assert (tmp_path / "rules.md").read_text(encoding="utf-8").startswith("# Rules of diagnosis")


@pytest.mark.parametrize("sample", _table())
def test_a_sample_has_its_label_and_no_other_critical_finding(sample: str) -> None:
    """Alone and against a healthy run; consequences (in brackets) belong to the label."""
    found = _table()[sample]
    if "h100_2gpu_1s" in sample:
        assert found is None
        return
    assert found is not None
    name = sample.split("`")[1].split("/")[1]
    label = LABELS.get(name)
    assert [rule for rule, mark in found.items() if mark == "**C**"] == (
        [label] if label is not None and label != "few_channels" else [])
    if label is not None:
        assert found[label] in ("**C**", "W")


def test_every_rule_applies_to_some_sample_or_is_tested_on_made_ones() -> None:
    applied = {rule for found in _table().values() if found for rule, mark in found.items() if mark != NOT_APPLICABLE}
    assert set(rules()) - applied == {"machine_health"}


def test_every_need_is_one_that_some_rule_has() -> None:
    assert needs_of_all() == set(Need)


def test_a_run_against_itself_changes_nothing() -> None:
    found = _table()[f"`{PAIRS[-1][0]}` against `{PAIRS[-1][1]}`"]
    assert found is not None
    assert found["step_change"] == found["transfer_change"] == "·"
