"""Dumps of PyTorch's flight recorder as torch documents them, made by hand: format 2.10, of gloo and of NCCL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def entry(number: int, *, name: str = "gloo:all_reduce", ended: bool = True,
          group: tuple[str, str] = ("0", "default_pg"), elements: int = 1024, dtype: str = "Float",
          record: int | None = None, **other: Any) -> dict[str, Any]:
    """One collective. gloo retires what has ended and never calls it completed; NCCL does both."""
    shapes = 1 if elements else 0
    return {"record_id": number - 1 if record is None else record, "pg_id": 0, "process_group": list(group),
            "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "profiling_name": name,
            "time_created_ns": 1_700_000_000_000_000_000 + number, "input_sizes": [[elements]] * shapes,
            "input_dtypes": [dtype] * shapes, "output_sizes": [[elements]] * shapes,
            "output_dtypes": [dtype] * shapes, "retired": ended, "is_p2p": False, "timeout_ms": 600_000,
            "state": "completed" if ended and name.startswith("nccl:") else "scheduled", "thread_name": "python",
            "time_discovered_started_ns": 0, "time_discovered_completed_ns": 0, **other}


def document(*entries: dict[str, Any], ranks: str = "[]") -> dict[str, Any]:
    """A whole dump; torch leaves the entries out where there are none."""
    return {"version": "2.10", "comm_lib_version": "", "nccl_comm_state": {},
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
            "pg_status": {"0": {"last_completed_collective": "0", "last_enqueued_collective": str(len(entries)),
                                "last_started_collective": "-1"}},
            **({"entries": list(entries)} if entries else {})}


def leave(folder: Path, rank: int, *entries: dict[str, Any], ranks: str = "[]", name: str = "all.json") -> Path:
    """The dump of one rank where the reader looks for it."""
    path = folder / f"rank{rank}.flight.{name}"
    path.write_text(json.dumps(document(*entries, ranks=ranks)))
    return path
