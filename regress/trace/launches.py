"""Launch calls of an nsys export, and which kernel each of them launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from regress.trace.codes import Codes, Growing
from regress.trace.export_db import ExportDb
from regress.trace.names import CallKind, call_kind, launches_kernel
from regress.trace.timeline import NO_TIME, Kernels, LaunchTimes, LostAndFound

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
UInt32 = NDArray[np.uint32]
_THREAD_BITS = np.int64(0xFFFFFF)
_STRETCH_NS = 50_000
"""A step is many times as long."""


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """One row a launching runtime or driver call, in the narrowest types: a trace has as many as kernels.

    name: id in StringIds. thread: index into thread_ids, which holds globalTids.
    """

    start: Int64
    process: Int32
    thread: Int32
    thread_ids: Int64
    correlation: UInt32
    name: Int32


def read_launches(db: ExportDb, name_ids: Sequence[int], processes: Codes) -> Launches:
    """The calls of these names, launches and captures, of every process; none where the runtime was not traced."""
    start, correlation, name = Growing(np.int64), Growing(np.uint32), Growing(np.int32)
    thread, process, threads = Growing(np.int32), Growing(np.int32), Codes()
    if name_ids:
        where = f"WHERE nameId IN ({', '.join(map(str, name_ids))})"
        wanted = ("start", "globalTid", "correlationId", "nameId")
        for began, tid, correlated, named in db.chunks("CUPTI_ACTIVITY_KIND_RUNTIME", wanted, where):
            start.add(began)
            thread.add(threads.encode(tid))
            process.add(processes.encode(tid & ~_THREAD_BITS))
            correlation.add(correlated)
            name.add(named)
    return Launches(start.int64(), process.int32(), thread.int32(), np.array(threads.values, np.int64),
                    correlation.uint32(), name.int32())


def join_launches(kernels: Kernels, correlation: UInt32, launches: Launches, name_rows: Int32,
                  texts: Sequence[str]) -> tuple[Kernels, Int32, LostAndFound]:
    """Kernels with their launch times, the launch row of each kernel (-1 where none was seen), and what is missing.

    Joined on process and correlation id: ids repeat between processes. Where a runtime call wraps a driver call under
    one id, the earlier start is the launch.
    """
    row = np.full(len(kernels), -1, np.int32)
    used = np.zeros(len(launches.start), np.bool_)
    for code in range(int(kernels.process.max(initial=-1)) + 1):
        mine = np.flatnonzero(launches.process == code)
        wanted = np.flatnonzero(kernels.process == code)
        if len(mine) == 0 or len(wanted) == 0:
            continue
        mine = mine[np.lexsort((launches.start[mine], launches.correlation[mine]))]
        keys = launches.correlation[mine]
        at = np.minimum(np.searchsorted(keys, correlation[wanted], side="left"), len(keys) - 1)
        hit = keys[at] == correlation[wanted]
        row[wanted[hit]] = mine[at[hit]]
        used[mine[_contained(keys, correlation[wanted])]] = True
    launch = np.full(len(kernels), NO_TIME, np.int64)
    seen = row >= 0
    launch[seen] = launches.start[row[seen]]
    single = np.array([launches_kernel(text) for text in texts], np.bool_)
    in_graph = captured(launches.start, launches.thread, name_rows, texts)
    idle = int(np.count_nonzero(single[name_rows] & ~used & ~in_graph))
    lost = LostAndFound(kernels_without_launch=int(np.count_nonzero(~seen)), launches_without_kernel=idle,
                        zero_length_kernels=int(np.count_nonzero(kernels.end == kernels.start)),
                        negative_kernels=int(np.count_nonzero(kernels.end < kernels.start)))
    return replace(kernels, launch=launch), row, lost


def captured(start: Int64, thread: NDArray[np.integer], name_rows: NDArray[np.integer], texts: Sequence[str],
             ) -> NDArray[np.bool_]:
    """For each call whether its thread was capturing a CUDA graph, so that it launched nothing by itself.

    name_rows: index into `texts`, the names of calls, for each of them.
    """
    kinds = {int(row): call_kind(texts[row]) for row in np.unique(name_rows)}
    begin, end = (np.isin(name_rows, [row for row, kind in kinds.items() if kind is wanted])
                  for wanted in (CallKind.CAPTURE_BEGIN, CallKind.CAPTURE_END))
    found = np.zeros(len(start), np.bool_)
    for one in np.unique(thread[begin]):
        mine = np.flatnonzero(thread == one)
        mine = mine[np.argsort(start[mine], kind="stable")]
        # A driver call inside the runtime call may be there too: begun means begun at least once.
        found[mine] = np.cumsum(begin[mine].astype(np.int64) - end[mine]) > 0
    return found


def thinned(start: Int64, process: Int32, thread_ids: Int64, thread: Int32) -> LaunchTimes:
    """The launches, without those that follow one of the same thread in the same stretch of time.

    thread: index into thread_ids. A trace has millions, and whether a thread launches in a step needs few.
    """
    first = np.ones(len(start), np.bool_)
    stretch = start // _STRETCH_NS
    first[1:] = (stretch[1:] != stretch[:-1]) | (thread[1:] != thread[:-1])
    return LaunchTimes(start[first], process[first], thread_ids[thread[first]])


def _contained(sorted_keys: UInt32, wanted: UInt32) -> NDArray[np.bool_]:
    """For each of the ascending keys whether it is wanted."""
    found = np.zeros(len(sorted_keys), np.bool_)
    low = np.searchsorted(sorted_keys, wanted, side="left")
    hit = sorted_keys[np.minimum(low, len(sorted_keys) - 1)] == wanted
    found[low[hit]] = True
    # Calls that share a key (a driver call inside a runtime call) belong together.
    first = np.searchsorted(sorted_keys, sorted_keys, side="left")
    return found[first]
