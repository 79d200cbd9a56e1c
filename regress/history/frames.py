"""Series as pandas frames, for the report and for exploring. The judge reads runs and needs none of this."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from regress.history.index import Bound, Connection, Row, RunRow, Window

SERIES_COLUMNS = ("run_id", "attempt", "commit", "started_at", "value", "low", "high", "p25", "p50", "p95", "launches",
                  "baseline", "verdict")
"""value: median over launches, in the metric's base unit; low, high: over launches; p25, p50, p95: medians over
launches of the quantiles inside each; baseline and verdict: as judged then, None where the metric was not judged."""

_SERIES = """SELECT r.run_id, r.attempt, r.commit_sha, r.started_at, x.value, x.low, x.high, x.p25, x.p50, x.p95,
    x.launches, x.baseline, x.verdict FROM comm_regress_result x JOIN comm_regress_run r ON r.id = x.run
    WHERE x.series = :series AND {condition} ORDER BY r.started_at DESC, r.run_id DESC, r.attempt DESC"""


def series(connection: Connection, window: Window, case: str, metric: str,
           order: Callable[[list[Row]], list[Row]]) -> pd.DataFrame:
    """One metric of one case over the runs of a window, oldest first; `attrs` holds case, metric, unit and better.

    order: rearranges lines that come newest first by time, the commit in their third place.
    """
    described = connection.rows("SELECT id, unit, better FROM comm_regress_series "
                                "WHERE case_id = :case_id AND metric = :metric", {"case_id": case, "metric": metric})
    lines: list[Row] = []
    if described:
        condition, values = window.clause()
        lines = connection.rows(_SERIES.format(condition=condition), values | {"series": described[0][0]})
    columns = list(zip(*reversed(order(lines)), strict=True)) if lines else [()] * len(SERIES_COLUMNS)
    frame: pd.DataFrame = pd.DataFrame(dict(zip(SERIES_COLUMNS, map(_column, SERIES_COLUMNS, columns), strict=True)))
    frame.attrs.update(case=case, metric=metric, unit=described[0][1] if described else None,
                       better=described[0][2] if described else None)
    return frame


def _column(name: str, values: Sequence[Bound]) -> npt.NDArray[np.generic] | pd.DatetimeIndex:
    if name == "started_at":
        # The index keeps UTC with 26 characters before the Z: cutting it there beats parsing time zones.
        times: pd.DatetimeIndex = pd.DatetimeIndex(np.array(values, dtype="U26").astype("datetime64[us]"), tz="UTC")
        return times
    if name in ("attempt", "launches"):
        return np.array(values, dtype=np.int64)
    if name in ("run_id", "commit", "verdict"):
        return np.array(values, dtype=object)
    return np.array(values, dtype=np.float64)


def medians(connection: Connection, newest_first: Sequence[RunRow]) -> pd.DataFrame:
    """Medians over launches of everything measured in these runs: runs by lines, oldest first; series by columns."""
    runs = list(reversed(newest_first))
    names = connection.rows("SELECT id, case_id, metric FROM comm_regress_series ORDER BY case_id, metric")
    column = {int(key): place for place, (key, _, _) in enumerate(names)}
    table = np.full((len(runs), len(names)), np.nan)
    for line, run in enumerate(runs):
        found = connection.rows("SELECT series, value FROM comm_regress_result WHERE run = :run", {"run": run.key})
        if found:
            keys, values = zip(*found, strict=True)
            table[line, [column[key] for key in keys]] = values
    measured = ~np.isnan(table).all(axis=0) if runs else np.zeros(len(names), dtype=bool)
    lines = pd.MultiIndex.from_tuples([(run.run_id, run.attempt) for run in runs], names=["run_id", "attempt"]) \
        if runs else pd.MultiIndex.from_arrays([[], []], names=["run_id", "attempt"])
    kept = [(str(case), str(metric)) for (_, case, metric), keep in zip(names, measured, strict=True) if keep]
    columns = pd.MultiIndex.from_tuples(kept, names=["case", "metric"]) if kept \
        else pd.MultiIndex.from_arrays([[], []], names=["case", "metric"])
    frame: pd.DataFrame = pd.DataFrame(table[:, measured], index=lines, columns=columns)
    return frame
