"""PyTorch's flight recorder in a launch that hangs: the dumps of the ranks, and which collective they disagree about.

The ranks' side, and the names of the files, are in `benchmarks/flight.py`. The entries are those that torch documents
for its flight recorder (format 2.x, torch 2.4 on): one for each collective that was called, with its process group, its
number in that group, its sizes and whether it has ended. gloo's groups are in it from torch 2.8 on; collectives that
are replayed from a CUDA graph, and gloo's monitored barriers, are in none.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from regress.measure.plain_pickle import read_plain
from regress.units import format_size

DUMP_SECONDS = 5.0
"""How long a rank is waited for: a dump of 2,000 collectives takes milliseconds where the rank is scheduled at all."""
MOST_BYTES = 32 << 20
"""Of one dump: torch keeps 2,000 collectives of half a kilobyte unless told otherwise."""
SHOWN_COLLECTIVES = 4
_NAME_CHARACTERS = 60

_ELEMENT_BYTES = {"Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "UInt16": 2, "Half": 2, "BFloat16": 2, "Int": 4,
                  "UInt32": 4, "Float": 4, "Long": 8, "UInt64": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16}
_NAMED = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
          "Int": "int32", "Byte": "uint8", "Char": "int8", "Bool": "bool"}

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Entry(msgspec.Struct):
    """A collective, as far as it is needed here."""

    record_id: _Count
    process_group: list[str] | str
    profiling_name: str
    collective_seq_id: _Count
    state: str
    p2p_seq_id: _Count = 0
    is_p2p: bool = False
    retired: bool = False
    time_created_ns: _Count = 0
    input_sizes: list[list[_Count]] = []
    input_dtypes: list[str] = []
    output_sizes: list[list[_Count]] = []
    output_dtypes: list[str] = []


class _Group(msgspec.Struct):
    ranks: str | list[_Count] = ""


class _Document(msgspec.Struct):
    """A whole dump. Without entries where nothing was recorded."""

    version: str
    entries: list[_Entry] = []
    pg_config: dict[str, _Group] = {}


@dataclass(frozen=True, slots=True)
class Collective:
    """One call. group: name and description. number: of this call in its group, from 1; the same on every rank.

    text: what it is, for people. done: it has ended on this rank. began: when it was called, in ns since the epoch.
    """

    group: tuple[str, str]
    number: int
    text: str
    point_to_point: bool
    done: bool
    began: int


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank's recorder holds. members: ranks of a group by its name, where torch says. whole: nothing has been
    overwritten yet. problems: files that could not be read, and why."""

    collectives: tuple[Collective, ...] = ()
    members: tuple[tuple[str, frozenset[int]], ...] = ()
    whole: bool = True
    problems: tuple[str, ...] = ()


def ask(folder: Path, rank: int) -> bool:
    """Makes a rank dump; False where it does not listen: an old torch, or a rank that has not come that far."""
    try:
        os.close(os.open(folder / f"rank{rank}.flight.pipe", os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def wait_for(folder: Path, ranks: Iterable[int], seconds: float = DUMP_SECONDS) -> list[int]:
    """Waits until those ranks have dumped, and returns those that have not by then."""
    missing, deadline = list(ranks), time.monotonic() + seconds
    while missing := [rank for rank in missing if not (folder / f"rank{rank}.flight.done").exists()]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return missing


def dump_files(folder: Path, rank: int | None = None) -> list[Path]:
    """The dumps in the folder of a launch, of one rank or of all."""
    which = "*" if rank is None else str(rank)
    named = [*folder.glob(f"rank{which}.flight.*.json"), *folder.glob(f"rank{which}.flight.*.pickle"),
             *folder.glob(f"flight-timeout-rank{which}")]
    return sorted(path for path in named if path.is_file())


def read_dump(paths: Sequence[Path]) -> Dump:
    """One rank's files as one dump. A file that is damaged, too large or no plain data is a problem, never an error."""
    found: dict[tuple[tuple[str, str], int, int, str], Collective] = {}
    members: dict[str, frozenset[int]] = {}
    problems, whole = [], True
    for path in paths:
        try:
            document = _read(path)
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            problems.append(f"{path.name} cannot be read ({_shown(str(error) or type(error).__name__, 160)})")
            continue
        for entry in document.entries:
            call = _collective(entry)
            key = call.group, call.number, entry.p2p_seq_id, call.text
            if key not in found or call.done:  # of two dumps the one in which it has ended is the later
                found[key] = call
        members |= {name: ranks for name, group in document.pg_config.items() if (ranks := _ranks(group.ranks))}
        whole = whole and min((entry.record_id for entry in document.entries), default=0) == 0
    return Dump(tuple(found.values()), tuple(sorted(members.items())), whole, tuple(problems))


def summary(folder: Path, world_size: int, silent: Sequence[int] = ()) -> str | None:
    """Which collectives the ranks are in the middle of, and who is missing in them; None where nobody dumped.

    silent: ranks that were asked and gave nothing.
    """
    files = {rank: dump_files(folder, rank) for rank in range(world_size)}
    dumps = {rank: read_dump(paths) for rank, paths in files.items() if paths}
    if not dumps and not silent:
        return None
    lines = [*_stuck_lines({rank: dump for rank, dump in dumps.items() if dump.collectives}, world_size)]
    if not lines and not any(dump.collectives or dump.problems for dump in dumps.values()) and dumps:
        lines = ["empty: no collective was called yet, or it is off (TORCH_FR_BUFFER_SIZE=2000 turns it on, before "
                 "torch 2.8 TORCH_NCCL_TRACE_BUFFER_SIZE=2000, and costs time in every call)"]
    lines += [problem for dump in dumps.values() for problem in dump.problems]
    if silent:
        lines.append(f"no dump within {DUMP_SECONDS:g} s from {_ranks_words(silent)}: a call there holds Python's "
                     "interpreter, or the process is stopped")
    return "".join(f"\nflight recorder: {line}" for line in lines).lstrip("\n")


def _read(path: Path) -> _Document:
    with path.open("rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"larger than {format_size(MOST_BYTES)}")
    if content.startswith(b"\x80"):
        return msgspec.convert(read_plain(content), _Document)
    return msgspec.json.decode(content, type=_Document)


def _collective(entry: _Entry) -> Collective:
    group = entry.process_group if isinstance(entry.process_group, list) else [entry.process_group]
    name, described = (_shown(text) for text in (*group, "", "")[:2])
    number = entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id
    # NCCL retires a call that has timed out too; gloo never says completed.
    done = entry.state == "completed" or (entry.retired and not entry.profiling_name.startswith("nccl:"))
    return Collective((name, described), number, _call_text(entry, number), entry.is_p2p, done, entry.time_created_ns)


def _call_text(entry: _Entry, number: int) -> str:
    """Such as `gloo:all_reduce #17 of 4KiB float32`: the larger of what goes in and what comes out, as nccl-tests."""
    sides = ((entry.input_sizes, entry.input_dtypes), (entry.output_sizes, entry.output_dtypes))
    size = max((_size_bytes(*side) or 0.0 for side in sides), default=0.0)
    dtypes = {*entry.input_dtypes, *entry.output_dtypes}
    dtype = next(iter(dtypes)) if len(dtypes) == 1 else ""
    words = [f"{_shown(entry.profiling_name)} #{number}"]
    if 0 < size < 1 << 62:
        words.append(f"of {format_size(size)}")
    if dtype:
        words.append(_shown(_NAMED.get(dtype, dtype)))
    return " ".join(words)


def _size_bytes(sizes: list[list[int]], dtypes: list[str]) -> float | None:
    """None where a type's size is not known."""
    total = 0.0
    for shape, dtype in zip(sizes, dtypes, strict=False):
        element = 1 if dtype.startswith("Float8") else _ELEMENT_BYTES.get(dtype)
        if element is None or len(shape) > 64:
            return None
        total += element * math.prod(map(float, shape))
    return total


def _ranks(told: str | list[int]) -> frozenset[int]:
    """Global ranks of a group: a list, or its text `[0, 1]`; empty where torch does not say."""
    if isinstance(told, list):
        return frozenset(told)
    parts = [part.strip() for part in told[:100_000].strip("[] ").split(",")]
    return frozenset(int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) < 8)


def _stuck_lines(dumps: dict[int, Dump], world_size: int) -> list[str]:
    """One line for each collective that somebody is in, the one that began first at the top."""
    stuck: dict[tuple[tuple[str, str], bool], Collective] = {}
    for dump in dumps.values():
        for call in dump.collectives:
            known = stuck.get((call.group, call.point_to_point))
            if not call.done and (known is None or call.number < known.number):
                stuck[call.group, call.point_to_point] = call
    if not stuck:
        if not dumps:
            return []
        return [f"no recorded collective is under way on {_ranks_words(dumps)}: what they wait for is something else "
                "(between its phases the harness meets in gloo's monitored barrier, which is not recorded)"]
    ordered = sorted(stuck.values(), key=lambda call: call.began)
    lines = [_stuck_line(call, dumps, world_size) for call in ordered[:SHOWN_COLLECTIVES]]
    if len(ordered) > SHOWN_COLLECTIVES:
        lines.append(f"and {len(ordered) - SHOWN_COLLECTIVES} more groups with a collective under way")
    return lines


def _stuck_line(first: Collective, dumps: dict[int, Dump], world_size: int) -> str:
    name, described = first.group
    group = f"group {name}" + (f" ({described})" if described and described != "undefined" else "")
    inside: dict[str, list[int]] = {}
    finished: list[int] = []
    outside: dict[int, list[int]] = {}
    unknown: list[int] = []
    for rank in sorted(_members(first, dumps, world_size)):
        calls = [call for call in (dumps[rank].collectives if rank in dumps else ())
                 if call.group == first.group and call.point_to_point == first.point_to_point]
        under_way = [call for call in calls if call.number == first.number and not call.done]
        last = max((call.number for call in calls), default=0)
        if under_way:
            inside.setdefault(under_way[0].text, []).append(rank)
        elif last >= first.number:
            finished.append(rank)
        elif rank not in dumps or not (calls or dumps[rank].whole):
            unknown.append(rank)
        else:
            outside.setdefault(last, []).append(rank)
    if len(inside) > 1:
        parts = [f"{_ranks_words(ranks)} in {text}" for text, ranks in inside.items()]
        opening = f"in {group} ranks called different collectives: " + ", ".join(parts)
    else:
        (text, ranks), = inside.items()
        opening = f"{text} in {group}: {_ranks_words(ranks)} in it"
    if first.point_to_point:
        return opening
    parts = [f"{_ranks_words(ranks)} never entered (" + (f"last there: #{last})" if last else "nothing there yet)")
             for last, ranks in outside.items()]
    if finished:
        parts.append(f"{_ranks_words(finished)} finished it")
    if unknown:
        parts.append(f"of {_ranks_words(unknown)} nothing is known")
    if not parts and len(inside) == 1:
        parts.append("nobody is missing, so what stands still is a transport or a GPU")
    return ", ".join([opening, *parts])


def _members(call: Collective, dumps: dict[int, Dump], world_size: int) -> frozenset[int]:
    """The ranks of its group: as torch says; of the first group and the harness's own all; else those that used it."""
    for dump in dumps.values():
        if told := dict(dump.members).get(call.group[0]):
            return frozenset(rank for rank in told if rank < world_size)
    if call.group[1] == "default_pg" or call.group[1].startswith("comm-regress") or call.group[0] in ("", "0"):
        return frozenset(range(world_size))
    return frozenset(rank for rank, dump in dumps.items() if any(one.group == call.group for one in dump.collectives))


def _ranks_words(ranks: Iterable[int]) -> str:
    listed = sorted(ranks)
    if len(listed) == 1:
        return f"rank {listed[0]}"
    shown = ", ".join(map(str, listed[:16])) + (f" and {len(listed) - 16} more" if len(listed) > 16 else "")
    return f"ranks {shown}"


def _shown(text: str, most: int = _NAME_CHARACTERS) -> str:
    """A name from a dump: one short line of what can be printed."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text[:most])
    return clean + ("…" if len(text) > most else "")
