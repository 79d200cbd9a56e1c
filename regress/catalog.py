"""What is on the shelves, gathered once: the only place that opens them all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import regress.judge.detectors as detector_shelf
import regress.metrics as metric_shelf
import regress.publish as sink_shelf
from regress.config import Catalog, WorkloadFacts
from regress.judge.detectors import Detector
from regress.metrics import Metric
from regress.publish import Sink
from regress.record import Case
from regress.shelf import beside_package, variants
from regress.units import Unit


@dataclass(frozen=True, slots=True)
class Shelves:
    """Everything on the shelves, by name."""

    workloads: dict[str, Any]
    metrics: dict[str, Metric]
    detectors: dict[str, Detector]
    sinks: dict[str, Sink[Any]]

    def metrics_of(self, workload: str) -> dict[str, Metric]:
        """The metrics that cases of a workload can give, by the name they have there; gated times first."""
        collective = self.workloads[workload].collective
        ordered = sorted(self.metrics.values(), key=lambda metric: (not metric.gated, metric.unit is not Unit.SECONDS))
        return {metric.name_for(workload): metric for metric in ordered if metric.collective in (None, collective)}

    def metric(self, case: Case, name: str) -> Metric | None:
        """The declaration behind a metric's name in a case; None for a name of another version."""
        return self.metrics_of(case.workload).get(name) if case.workload in self.workloads else None

    def catalog(self) -> Catalog:
        """The same as the loader of thresholds.yaml needs it."""
        workloads: dict[str, WorkloadFacts] = {}
        for name, workload in self.workloads.items():
            units: dict[str, Unit] = {metric: known.unit for metric, known in self.metrics_of(name).items()}
            workloads[name] = WorkloadFacts(workload.collective, workload.options, units)
        return Catalog(workloads, {name: detector.options for name, detector in self.detectors.items()},
                       {name: sink.options for name, sink in self.sinks.items()})


@cache
def open_shelves() -> Shelves:
    """Imports every file on every shelf; ShelfError when two declare one name."""
    benchmarks = beside_package("benchmarks")
    return Shelves(variants(benchmarks, benchmarks.Workload), variants(metric_shelf, Metric),
                   variants(detector_shelf, Detector), variants(sink_shelf, Sink))
