"""What traces say, for people and programs: every metric of a run, what is wrong with it, and what changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from regress.difference import Difference, Json, difference, difference_lines
from regress.record import Diagnosis
from regress.units import Better, Unit, format_change, format_seconds, format_size, format_value

if TYPE_CHECKING:
    from regress.diagnose import Circumstances
    from regress.metrics import Metric, Reading
    from regress.trace.analysis import Analysis
    from regress.trace.lane import Lane
    from regress.trace.messages import Arrival, MessageSize
    from regress.trace.read import Export


@dataclass(frozen=True, slots=True)
class ExplainedMetric:
    """One metric of the run; against and change (relative, positive when it grew) where there is a run to compare."""

    name: str
    unit: Unit
    better: Better
    summary: str
    value: float
    by_rank: dict[int, float] = field(default_factory=dict)
    detail: dict[str, float] = field(default_factory=dict)
    against: float | None = None
    change: float | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one run's traces say. window: "steps" or "kernels", what ratios are taken over.

    metrics: those this trace can give, in alphabetical order. findings: worst first. messages: collectives by operation
    and size. rank_details: whole-capture figures of each rank, over first kernel start to last kernel end. difference:
    what differs from the run compared with, None without one.
    """

    ranks: int
    devices: int
    tracer: str
    versions: tuple[str, ...]
    window: str
    steps: int | None
    identity: str
    metrics: tuple[ExplainedMetric, ...]
    findings: tuple[Diagnosis, ...]
    warnings: tuple[str, ...]
    messages: tuple[dict[str, Json], ...] = ()
    rank_details: tuple[dict[str, Json], ...] = ()
    difference: Difference | None = None

    def get(self, name: str) -> ExplainedMetric | None:
        """The metric of that name, None where this trace cannot give it."""
        return next((metric for metric in self.metrics if metric.name == name), None)

    def to_json(self) -> dict[str, Json]:
        """The public JSON form, ready for any encoder."""
        metrics: dict[str, Json] = {metric.name: _metric_json(metric) for metric in self.metrics}
        found: dict[str, Json] = {
                "ranks": self.ranks, "devices": self.devices, "tracer": self.tracer, "versions": list(self.versions),
                "window": self.window, "steps": self.steps, "rank_identity": self.identity, "metrics": metrics,
                "findings": [finding_json(finding) for finding in self.findings], "warnings": list(self.warnings),
                "messages": list(self.messages), "rank_details": list(self.rank_details)}
        return found if self.difference is None else found | {"difference": self.difference.to_json()}


def _metric_json(metric: ExplainedMetric) -> dict[str, Json]:
    found: dict[str, Json] = {"value": metric.value, "unit": metric.unit.value, "better": metric.better.value}
    if metric.by_rank:
        found["by_rank"] = {str(rank): value for rank, value in sorted(metric.by_rank.items())}
    if metric.detail:
        found["detail"] = dict(metric.detail)
    if metric.against is not None:
        found |= {"against": metric.against, "change": metric.change}
    return found


def finding_json(finding: Diagnosis) -> dict[str, Json]:
    """A finding in its public JSON form; `consequences`, findings too, only where it has some."""
    found: dict[str, Json] = {"rule": finding.rule, "severity": finding.severity, "confidence": finding.confidence,
                              "evidence": dict(finding.evidence), "cause": finding.cause, "try": finding.suggestion}
    if finding.consequences:
        found["consequences"] = [finding_json(one) for one in finding.consequences]
    return found


def explain(paths: Sequence[Path], against: Sequence[Path] | None = None, *, nsys: Export | None = None,
            within: str | None = None, logs: Sequence[Path] = (), logs_against: Sequence[Path] = (),
            cost_per_gpu_hour: float | None = None) -> Explanation:
    """Read the traces of one run (and of another to compare with) and say what they show.

    nsys: exports an .nsys-rep to an SQLite file; None refuses such reports. within: text of the host ranges to keep to.
    logs: NCCL's logs and what ranks printed, of this run and of the other. cost_per_gpu_hour: turns a change of the
    step's time into money. Raises TraceInputError (exit status 4) for what cannot be read and TraceUnfitError (10) for
    what cannot be trusted.
    """
    from regress.trace.read import read_traces

    now = known_of(read_traces(paths, export=nsys, within=within), logs)
    before = known_of(read_traces(against, export=nsys, within=within), logs_against) if against else None
    return explain_run(replace(now, cost_per_gpu_hour=cost_per_gpu_hour), before)


def known_of(analysis: Analysis, logs: Sequence[Path]) -> Circumstances:
    """A run's traces with what its log files say: NCCL's, and the ranks' own output, told apart line by line.

    Raises TraceInputError for a file that cannot be read.
    """
    from regress.diagnose import Circumstances
    from regress.errors import TraceInputError
    from regress.trace.nccl_log import is_own_line, parse_log
    from regress.trace.rank_output import trouble

    if not logs:
        return Circumstances(analysis)
    lines: list[str] = []
    for path in logs:
        try:
            lines += path.read_text(errors="replace").splitlines()
        except OSError as error:
            raise TraceInputError(f"cannot be read: {error.strerror}", where=str(path),
                                  accepted="a log of NCCL or the output of a rank") from error
    printed = (line for line in lines if not is_own_line(line))
    return Circumstances(analysis, parse_log("\n".join(lines)), trouble(printed))


def explain_analysis(now: Analysis, against: Analysis | None = None) -> Explanation:
    """`explain_run` where nothing but traces is known."""
    from regress.diagnose import Circumstances

    return explain_run(Circumstances(now), None if against is None else Circumstances(against))


def explain_run(seen: Circumstances, other: Circumstances | None = None) -> Explanation:
    """What a run's traces and logs show, compared with another's where one is given.

    Figures of different tracers are never compared: `other` of another tracer raises UsageError.
    """
    import regress.metrics
    from regress.diagnose import diagnose_run
    from regress.errors import UsageError
    from regress.metrics import Metric
    from regress.shelf import variants
    from regress.trace.messages import arrivals, message_sizes

    now, against = seen.analysis, None if other is None else other.analysis
    if against is not None and against.tracer is not now.tracer:
        raise UsageError(f"a trace of {now.tracer.value} compared with one of {against.tracer.value}",
                         accepted="two traces of the same tracer")
    shelf = variants(regress.metrics, Metric)
    metrics = [explained for metric in shelf.values() if (explained := _explained(metric, now, against)) is not None]
    warnings = [*now.warnings, *(_compared(now, against) if against is not None else ())]
    came = {arrival.rank: arrival for arrival in arrivals(now)}
    return Explanation(
        ranks=len(now.lanes), devices=now.devices, tracer=now.tracer.value, versions=now.versions,
        window=now.window_source.value, steps=now.steps, identity=now.identity.value, metrics=tuple(metrics),
        findings=diagnose_run(seen, other), warnings=tuple(warnings),
        messages=tuple(_message_json(row) for row in message_sizes(now)),
        rank_details=tuple(_rank_json(lane, came.get(lane.rank or 0)) for lane in now.lanes),
        difference=None if other is None else difference(seen, other))


def _explained(metric: Metric, now: Analysis, against: Analysis | None) -> ExplainedMetric | None:
    reading: Reading | None = metric.from_trace(now) if metric.from_trace is not None else None
    if reading is None:
        return None
    before = metric.from_trace(against) if metric.from_trace is not None and against is not None else None
    old = None if before is None else before.value
    change = None if old is None or old == 0 else reading.value / old - 1
    return ExplainedMetric(metric.name, metric.unit, metric.better, metric.summary, reading.value, reading.by_rank,
                           reading.detail, old, change)


def _compared(now: Analysis, against: Analysis) -> Iterator[str]:
    """What makes the comparison itself doubtful."""
    yield from (f"against: {text}" for text in against.warnings)
    if len(now.lanes) != len(against.lanes):
        yield f"compared with a run of {len(against.lanes)} ranks: this one has {len(now.lanes)}"
    if now.window_source is not against.window_source:
        yield (f"ratios are over {now.window_source.value} here and over {against.window_source.value} in the run "
               "compared with")
    if now.versions != against.versions:
        yield f"tracers differ in version: {', '.join(now.versions)} and {', '.join(against.versions)}"


def _message_json(row: MessageSize) -> dict[str, Json]:
    return {"operation": row.operation, "size_bytes": row.size_bytes, "ranks": row.ranks, "count": row.count,
            "transfer_seconds": row.transfer_seconds, "slowest_seconds": row.slowest_seconds,
            "skew_seconds": row.skew_seconds, "channels": row.channels,
            "busbw_bytes_per_second": row.busbw_bytes_per_second}


def _rank_json(lane: Lane, arrival: Arrival | None) -> dict[str, Json]:
    whole = lane.in_trace
    return {"rank": lane.rank, "identity": lane.source.value, "file": lane.file, "pid": lane.pid,
            "device": None if lane.on_host else lane.device, "kernels": lane.kernels,
            "comm_kernels": lane.comm_kernels, "collectives": len(lane.collectives),
            "last_to_arrive": None if arrival is None else arrival.last,
            "late_seconds_mean": None if arrival is None else arrival.late_seconds,
            "waiting_seconds_mean": None if arrival is None else arrival.waiting_seconds,
            "span_seconds": whole.span_ns / 1e9, "busy_seconds": whole.busy_ns / 1e9,
            "comm_seconds": whole.comm_ns / 1e9,
            "compute_seconds": whole.compute_ns / 1e9, "exposed_comm_seconds": whole.exposed_ns / 1e9,
            "overlap_seconds": whole.overlap_ns / 1e9, "kernel_names": dict(lane.kernel_names),
            "calls": {call.name: call.count for call in lane.calls},
            "copies": [{"kind": copy.kind.value, "pageable": copy.pageable, "count": copy.count, "bytes": copy.bytes,
                        "seconds": copy.total_ns / 1e9} for copy in lane.copies]}


def render_text(explanation: Explanation) -> str:
    """The explanation as plain text for a terminal: head line, metrics, message sizes, findings, warnings."""
    steps = f", {explanation.steps} step{'s' if explanation.steps > 1 else ''}" if explanation.steps else ""
    over = "step ranges" if explanation.window == "steps" else "first kernel's start to last kernel's end"
    where = f"{explanation.devices} GPU{'s' if explanation.devices > 1 else ''}" if explanation.devices else "the CPU"
    ratios = f"; ratios over {over}" if explanation.devices else ""
    lines = [f"{explanation.ranks} rank{'s' if explanation.ranks > 1 else ''} on {where}{steps}; "
             f"{', '.join(explanation.versions)}{ratios}", ""]
    lines += _metric_lines(explanation)
    if explanation.messages:
        lines += ["", *_message_lines(explanation)]
    if explanation.difference is not None and (changed := difference_lines(explanation.difference)):
        lines += ["", "changed since the run compared with:", *(f"  {text}" for text in changed)]
    for finding in explanation.findings:
        if explanation.difference is not None and finding.rule == "step_change":
            continue  # the first line of what changed says it
        sure = "" if finding.confidence == "high" else f" ({finding.confidence} confidence)"
        lines += ["", f"{finding.severity.upper()} {finding.rule}: {finding.cause}{sure}",
                  f"  try: {finding.suggestion}",
                  *(f"  leads to {one.rule}: {one.cause}" for one in finding.consequences)]
    if not explanation.findings:
        lines += ["", "No rule found anything to say."]
    lines += ["", *(f"warning: {text}" for text in explanation.warnings)] if explanation.warnings else []
    return "\n".join(lines) + "\n"


def _metric_lines(explanation: Explanation) -> list[str]:
    compared = any(metric.against is not None for metric in explanation.metrics)
    head = ["metric", "value", *(["against", "change"] if compared else []), "by rank"]
    rows = [head]
    for metric in explanation.metrics:
        ranks = sorted(metric.by_rank.items())
        shown = "  ".join(f"{rank}: {format_value(value, metric.unit)}" for rank, value in ranks[:8])
        rest = f"  … {len(ranks) - 8} more" if len(ranks) > 8 else ""
        old = [format_value(metric.against, metric.unit), format_change(metric.change)] if compared else []
        rows.append([metric.name, format_value(metric.value, metric.unit), *old, shown + rest])
    return _table(rows)


def _message_lines(explanation: Explanation) -> list[str]:
    rows = [["operation", "size", "count", "transfer", "slowest rank", "skew", "busbw", "channels"]]
    for row in explanation.messages[:12]:
        size, busbw = row["size_bytes"], row["busbw_bytes_per_second"]
        rows.append([str(row["operation"]), format_size(size) if isinstance(size, int) else "–", str(row["count"]),
                     *(format_seconds(value) if isinstance(value, float) else "–" for value in
                       (row["transfer_seconds"], row["slowest_seconds"], row["skew_seconds"])),
                     format_value(busbw if isinstance(busbw, float) else None, Unit.BYTES_PER_SECOND),
                     str(row["channels"] or "–")])
    return _table(rows)


def _table(rows: list[list[str]]) -> list[str]:
    """Rows with columns padded to their widest cell, two spaces apart."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
