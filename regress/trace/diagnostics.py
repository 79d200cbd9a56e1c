"""What nsys itself says went wrong: the DIAGNOSTIC_EVENT rows that mean lost events.

Most rows come with every healthy capture ("Not all CUDA events might have been collected") and are ignored; texts
change between versions, so the structural checks of `health` decide, and these are shown beside them.
"""

from __future__ import annotations

import re

from regress.trace.export_db import ExportDb

_LOST = re.compile(r"dropped|reached the size limit|buffer overflow|missing data|out of memory"
                   r"|events? (?:were|was) lost", re.IGNORECASE)
_NONE_LOST = re.compile(r"dropped:?\s*0\b", re.IGNORECASE)


def read_diagnostics(db: ExportDb) -> tuple[str, ...]:
    """Texts that speak of lost events, each once, in order of appearance."""
    found: dict[str, None] = {}
    for table in db.tables("DIAGNOSTIC_EVENT"):
        for (text,) in db.rows(f'SELECT text FROM "{table}"'):
            line = " ".join(str(text).split())
            if _LOST.search(line) and not _NONE_LOST.search(line):
                found[line] = None
    return tuple(found)
