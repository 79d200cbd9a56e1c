"""Who a wait is really for: the last rank of a collective may be late only as it waited for another rank before.

Ranks leave a collective together. What one of two ranks comes later to their next collective is what it worked longer
since, and what it waited longer in collectives that the other was not in:

    lateness = (work of the last - work of the other) + (waits of the last - waits of the other)

So the second part, at most the whole lateness, is passed on to whom the last rank waited for, in the same proportions,
and from there on to whom that one had waited for (the idea of critical paths: Böhme et al., "Identifying the root
causes of wait states in large-scale parallel applications", ICPP 2010).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from regress.trace.analysis import Analysis
from regress.trace.collectives import Matched
from regress.trace.intervals import covered_before

Int64 = NDArray[np.int64]

_CHANCE_NS = 20_000
"""What clocks of two files may differ by unseen: less lateness than that is not followed back."""
_FEW = 0.01
"""Ranks with less than this of the most that is passed on to one are left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """What of the waits in one communicator is for other ranks than the last of their collective.

    ns: of each wait (one row a collective, one column a rank). Of what is passed on in a collective, rank `rank[i]` has
    the part from `low[i]` to `high[i]` (of 1) in collective `row[i]`.
    """

    ns: Int64
    row: Int64
    rank: Int64
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class _Events:
    """All waits of one rank, in order of their ends: when they end, in which group and collective, for which rank.

    ns: the part that nothing else ran beside. total: its sum before each event, and over all.
    """

    end: Int64
    group: Int64
    row: Int64
    last: Int64
    ns: Int64
    total: Int64

    def waited_before(self, times: Int64) -> Int64:
        """The waits that ended by each time, in ns."""
        found: Int64 = self.total[np.searchsorted(self.end, times, side="right")]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Amounts:
    """What is passed on of each wait in one communicator: one row a collective, one column a rank, in ns.

    since, since_theirs: when the last rank and the one that waits left a collective together, in whatever communicator;
    only what they waited for after that counts. The least integer where they had been in none.
    """

    ns: Int64
    since: Int64
    since_theirs: Int64


_Answers = dict[int, dict[int, float]]


@lru_cache(maxsize=2)
def passed_on(analysis: Analysis) -> tuple[Passed | None, ...]:
    """For each communicator of the analysis what is passed on; None where nothing is.

    Costs a sort of all collectives, and a slice of its last rank's waits for each collective with lateness to pass on.
    """
    groups = analysis.matching.groups
    if len(groups) < 2:
        return (None,) * len(groups)
    events = {lane.rank: _events(analysis, number) for number, lane in enumerate(analysis.lanes)
              if lane.rank is not None}
    member: dict[int, list[Matched]] = {}
    for group in groups:
        for rank in group.ranks:
            member.setdefault(rank, []).append(group)
    amounts = [_amounts(group, events, member) for group in groups]
    answers = _answers(groups, events, amounts)
    return tuple(_told(one.ns, of_group) for one, of_group in zip(amounts, answers, strict=True))


def _events(analysis: Analysis, number: int) -> _Events:
    lane, shift = analysis.lanes[number], analysis.matching.shifts_ns[number]
    parts = []
    for place, group in enumerate(analysis.matching.groups):
        if lane.rank in group.ranks:
            column = group.ranks.index(lane.rank)
            start, arrived = group.start[:, column], group.end[:, column] - group.transfer_ns
            alone = covered_before(lane.exposed, arrived - shift) - covered_before(lane.exposed, start - shift)
            last = np.array(group.ranks)[group.last]
            count = len(start)
            parts.append((group.end[:, column], np.full(count, place), np.arange(count), last,
                          np.where(last == lane.rank, 0, alone)))
    if not parts:
        none = np.empty(0, np.int64)
        return _Events(none, none, none, none, none, np.zeros(1, np.int64))
    end, of_group, row, last, ns = (np.concatenate([part[k] for part in parts]).astype(np.int64) for k in range(5))
    order = np.argsort(end, kind="stable")
    return _Events(end[order], of_group[order], row[order], last[order], ns[order],
                   np.concatenate((np.zeros(1, np.int64), np.cumsum(ns[order]))))


def _amounts(group: Matched, events: Mapping[int, _Events],
             member: Mapping[int, Sequence[Matched]]) -> _Amounts:
    longer, since, since_theirs = (np.zeros_like(group.start) for _ in range(3))
    common = _common(group, member)
    for column in np.unique(group.last).tolist():
        rows, last = np.flatnonzero(group.last == column), events[group.ranks[column]]
        since[rows], since_theirs[rows] = _together(
            group, rows, column, [one for one in common if group.ranks[column] in one[0].ranks])
        longer[rows] = last.waited_before(group.start[rows, column])[:, None] - last.waited_before(since[rows])
    for column, rank in enumerate(group.ranks):
        waited = events[rank].waited_before
        longer[:, column] -= waited(group.start[:, column]) - waited(since_theirs[:, column])
    longer[np.arange(len(longer)), group.last] = 0
    passed = np.minimum(longer, group.end - group.transfer_ns[:, None] - group.start)
    return _Amounts(np.where(passed < _CHANCE_NS, 0, passed), since, since_theirs)


def _common(group: Matched, member: Mapping[int, Sequence[Matched]]) -> list[tuple[Matched, Int64, Int64]]:
    """Communicators that share two ranks or more with this one, itself among them, with the shared ranks' columns."""
    near = {id(other): other for rank in group.ranks for other in member[rank]}
    found = []
    for other in near.values():
        _, here, there = np.intersect1d(group.ranks, other.ranks, assume_unique=True, return_indices=True)
        if len(here) > 1:
            found.append((other, here, there))
    return found


def _together(group: Matched, rows: Int64, column: int,
              common: Sequence[tuple[Matched, Int64, Int64]]) -> tuple[Int64, Int64]:
    """When the rank of that column was last in a collective with each other rank, by its end on either's lane.

    One row a collective of `rows`, one column a rank; the least integer where they were in none before.
    """
    mine = np.full((len(rows), len(group.ranks)), np.iinfo(np.int64).min)
    theirs = mine.copy()
    for other, here, there in common:
        end = other.end[:, other.ranks.index(group.ranks[column])]
        before = np.searchsorted(end, group.start[rows, column], side="right") - 1
        before = np.minimum(before, rows - 1) if other is group else before
        at = np.flatnonzero(before >= 0)
        where, ended = np.ix_(at, here), end[before[at]][:, None]
        later = ended > mine[where]
        theirs[where] = np.where(later, other.end[np.ix_(before[at], there)], theirs[where])
        mine[where] = np.where(later, ended, mine[where])
    return mine, theirs


def _answers(groups: Sequence[Matched], events: Mapping[int, _Events], amounts: Sequence[_Amounts]) -> list[_Answers]:
    """For each group and collective that passes waits on: the ranks they are for and the part of each, adding up to 1.

    By whom the last rank waited for longer than the one that waits most for it. In order of the last rank's start: what
    it waited for has its own answer by then.
    """
    passing = {rank: _passing(rank, groups, of_rank, amounts) for rank, of_rank in events.items()}
    found: list[_Answers] = [{} for _ in groups]

    def add(weight: dict[int, float], sign: int, rank: int, first: int, stop: int) -> None:
        """What a rank waited for each rank in its waits from first to stop, as far as is known."""
        mine = events[rank]
        columns = mine.last, mine.ns, passing[rank], mine.group, mine.row
        for last, ns, part, of, k in zip(*(column[first:stop].tolist() for column in columns), strict=True):
            answer = (found[of].get(k) if part else None) or {last: 1.0}
            weight[last] = weight.get(last, 0.0) + sign * ns * (1 - part)
            for whom, parts in answer.items():
                weight[whom] = weight.get(whom, 0.0) + sign * ns * part * parts

    for place, k, late, waiting in _spans(groups, events, amounts):
        weight: dict[int, float] = {}
        add(weight, 1, *late)
        add(weight, -1, *waiting)
        least = _FEW * max(weight.values())
        kept = {rank: ns for rank, ns in sorted(weight.items()) if ns >= least}
        found[place][k] = {rank: ns / sum(kept.values()) for rank, ns in kept.items()}
    return found


def _spans(groups: Sequence[Matched], events: Mapping[int, _Events], amounts: Sequence[_Amounts],
           ) -> Iterator[tuple[int, int, tuple[int, int, int], tuple[int, int, int]]]:
    """Group and row of each collective that passes on, in order of the last rank's start, and whose waits to compare.

    Of the last rank, and of the one that waits most for it: the rank, and which of its waits count, from and to.
    """
    table = []
    for place, (group, one) in enumerate(zip(groups, amounts, strict=True)):
        rows, ranks = np.flatnonzero(one.ns.any(axis=1)), np.array(group.ranks)
        last, other = group.last[rows], one.ns[rows].argmax(axis=1)
        columns = [group.start[rows, last], np.full(len(rows), place), rows]
        for column, after in ((last, one.since[rows, other]), (other, one.since_theirs[rows, other])):
            columns += [ranks[column], *_between(events, ranks[column], after, group.start[rows, column])]
        table.append(np.stack(columns, axis=1))
    ordered = np.concatenate(table)
    for _, place, k, *spans in ordered[np.argsort(ordered[:, 0], kind="stable")].tolist():
        yield place, k, (spans[0], spans[1], spans[2]), (spans[3], spans[4], spans[5])


def _between(events: Mapping[int, _Events], rank: Int64, after: Int64, until: Int64) -> tuple[Int64, Int64]:
    """The first wait of each of these ranks that ended after one time, and the first that ended after another."""
    first, stop = np.zeros_like(after), np.zeros_like(after)
    for one in np.unique(rank).tolist():
        mine = rank == one
        first[mine] = np.searchsorted(events[one].end, after[mine], side="right")
        stop[mine] = np.searchsorted(events[one].end, until[mine], side="right")
    return first, stop


def _passing(rank: int, groups: Sequence[Matched], events: _Events, amounts: Sequence[_Amounts]) -> NDArray[np.float64]:
    """The part of each of a rank's waits that is passed on."""
    found = np.zeros(len(events.end))
    for place in np.unique(events.group).tolist():
        group, mine = groups[place], np.flatnonzero(events.group == place)
        column, rows = group.ranks.index(rank), events.row[mine]
        waited = group.end[rows, column] - group.transfer_ns[rows] - group.start[rows, column]
        found[mine] = amounts[place].ns[rows, column] / np.maximum(waited, 1)
    return found


def _told(ns: Int64, answers: _Answers) -> Passed | None:
    if not answers:
        return None
    row = np.repeat(np.array(list(answers), np.int64), [len(parts) for parts in answers.values()])
    rank = np.array([one for parts in answers.values() for one in parts], np.int64)
    high = np.concatenate([_ends(list(parts.values())) for parts in answers.values()])
    low = np.concatenate((np.zeros(1), high[:-1]))
    low[np.concatenate(([True], row[1:] != row[:-1]))] = 0.0
    return Passed(ns, row, rank, low, high)


def _ends(parts: list[float]) -> NDArray[np.float64]:
    """Sums of the parts up to each, the last of them exactly 1."""
    ends = np.cumsum(parts)
    ends[-1] = 1.0
    return ends
