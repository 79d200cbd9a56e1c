"""The vectorised algebra against a literal one that keeps a set of covered nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from regress.trace.intervals import (
    EMPTY,
    Intervals,
    clip,
    covered_before,
    covers,
    difference,
    gaps,
    intersection,
    union,
)

_RAW = st.lists(st.tuples(st.integers(0, 60), st.integers(-3, 20)), max_size=25)


def _made(raw: list[tuple[int, int]]) -> Intervals:
    return union(np.array([s for s, _ in raw], np.int64), np.array([s + n for s, n in raw], np.int64))


def _cells(raw: list[tuple[int, int]]) -> set[int]:
    return {t for start, length in raw for t in range(start, start + length)}


def _covered(found: Intervals) -> set[int]:
    """The nanoseconds of a set, having checked that it is canonical."""
    assert (found.end > found.start).all()
    assert (found.start[1:] > found.end[:-1]).all()
    return {t for s, e in zip(found.start.tolist(), found.end.tolist(), strict=True) for t in range(s, e)}


@settings(deadline=None)
@given(_RAW)
def test_union_covers_what_any_interval_covers(raw: list[tuple[int, int]]) -> None:
    found = _made(raw)
    assert _covered(found) == _cells(raw)
    assert found.total == len(_cells(raw))


@settings(deadline=None)
@given(_RAW)
def test_covered_before_counts_what_lies_before(raw: list[tuple[int, int]]) -> None:
    times = np.arange(-2, 85)
    assert covered_before(_made(raw), times).tolist() == [sum(t < time for t in _cells(raw)) for time in times.tolist()]


@settings(deadline=None)
@given(_RAW, _RAW)
def test_intersection_and_difference_are_those_of_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    assert _covered(intersection(_made(a), _made(b))) == _cells(a) & _cells(b)
    assert _covered(difference(_made(a), _made(b))) == _cells(a) - _cells(b)


@settings(deadline=None)
@given(_RAW, st.integers(-5, 80), st.integers(-5, 80))
def test_gaps_and_clip_share_out_the_window(raw: list[tuple[int, int]], start: int, end: int) -> None:
    window = set(range(start, end))
    assert _covered(gaps(_made(raw), start, end)) == window - _cells(raw)
    assert _covered(clip(_made(raw), start, end)) == window & _cells(raw)


@settings(deadline=None)
@given(_RAW, st.lists(st.integers(-5, 90), max_size=10))
def test_covers_counts_an_intervals_own_end(raw: list[tuple[int, int]], times: list[int]) -> None:
    cells = _cells(raw)
    expected = [t in cells or t - 1 in cells for t in times]
    assert covers(_made(raw), np.array(times, np.int64)).tolist() == expected


def test_the_empty_set_is_neutral() -> None:
    some = _made([(1, 3)])
    assert len(union(np.empty(0, np.int64), np.empty(0, np.int64))) == 0
    assert difference(some, EMPTY) is some
    assert intersection(EMPTY, some).total == 0
    assert not covers(EMPTY, np.array([1], np.int64)).any()


def test_times_beyond_53_bits_stay_exact() -> None:
    base = 1_790_857_026_000_000_001
    found = union(np.array([base, base + 2], np.int64), np.array([base + 2, base + 5], np.int64))
    assert (found.start.tolist(), found.end.tolist()) == ([base], [base + 5])
