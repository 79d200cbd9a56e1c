"""Sampled GPU counters (GPU_METRICS), averaged in SQL: 220,000 rows a second and GPU are never loaded.

The GPU's number is the low byte of typeId; metric names are per (typeId, metricId), joining on metricId alone would
multiply rows with several GPUs. A counter that the GPU lacks has no rows: that is "unknown", not 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from regress.trace.export_db import ExportDb
from regress.trace.intervals import EMPTY, Intervals, union
from regress.trace.timeline import GpuMetric, Timeline

Lane = tuple[int, int]

_MOST_SPANS = 100
"""An expression may be 1000 deep (SQLite's SQLITE_MAX_EXPR_DEPTH), and an OR is one deeper for each span."""


def read_gpus(db: ExportDb, timeline: Timeline) -> dict[Lane, int]:
    """(process index, CUDA ordinal) to the machine's GPU number, for the lanes TARGET_INFO_CUDA_DEVICE knows."""
    index = {process.pid: i for i, process in enumerate(timeline.processes)}
    found: dict[Lane, int] = {}
    for table in db.tables("TARGET_INFO_CUDA_DEVICE"):
        for gpu, ordinal, pid in db.rows(f'SELECT gpuId, cudaId, pid FROM "{table}"'):
            if isinstance(gpu, int) and isinstance(ordinal, int) and isinstance(pid, int) and pid in index:
                found[index[pid], ordinal] = gpu
    return found


def read_gpu_metrics(db: ExportDb, gpus: Mapping[Lane, int],
                     windows: Mapping[Lane, Intervals]) -> tuple[GpuMetric, ...]:
    """Means per GPU and counter: over the windows of the lanes on that GPU, and over all."""
    if not db.tables("TARGET_INFO_GPU_METRICS"):
        return ()
    spans: dict[int, Intervals] = {}
    for lane, mine in windows.items():
        # Without the device table the ordinal is the best guess: it is the number unless devices are hidden.
        gpu = gpus.get(lane, lane[1])
        known = spans.get(gpu, EMPTY)
        spans[gpu] = union(np.concatenate((known.start, mine.start)), np.concatenate((known.end, mine.end)))
    names = {(t, m): str(n) for t, m, n in db.rows("SELECT typeId, metricId, metricName FROM TARGET_INFO_GPU_METRICS")}
    types = sorted({t for t, _ in names if isinstance(t, int)})
    found: list[GpuMetric] = []
    for type_id in types:
        gpu = type_id & 0xFF
        bounds = _bounds(spans.get(gpu, EMPTY))
        inside_window = " OR ".join(["timestamp BETWEEN ? AND ?"] * (len(bounds) // 2))
        for metric, count, mean, inside, inner in db.rows(
                f"SELECT metricId, COUNT(*), AVG(value), SUM({inside_window}), "
                f"AVG(CASE WHEN {inside_window} THEN value END) FROM GPU_METRICS WHERE typeId = ? "
                "GROUP BY metricId", (*bounds, *bounds, type_id)):
            name = names.get((type_id, metric))
            if name is not None and isinstance(count, int) and isinstance(mean, float):
                found.append(GpuMetric(gpu, name, inner if isinstance(inner, float) else None,
                                       inside if isinstance(inside, int) else 0, mean, count))
    return tuple(found)


def _bounds(spans: Intervals) -> tuple[int, ...]:
    """Start and end of each span; of the first and the last where SQLite could not take so long a condition."""
    if not len(spans):
        return 0, -1
    if len(spans) > _MOST_SPANS:
        return int(spans.start[0]), int(spans.end[-1])
    return tuple(np.stack((spans.start, spans.end), axis=1).ravel().tolist())
