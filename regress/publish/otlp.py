"""otlp: OpenTelemetry metrics over HTTP, as gauges with the time of the measurement.

The OpenTelemetry metric API has no way to give a time, so that the message is built from its own protocol classes;
needs the extra `otlp`. https://opentelemetry.io/docs/specs/otlp/
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regress.delivery import Payload, RefusedError, WithheldError, http
from regress.delivery.http import HttpOptions
from regress.delivery.series import Point
from regress.options import option
from regress.publish import Result, Sink
from regress.units import Unit

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

# https://ucum.org: the codes that OpenTelemetry asks for.
_UCUM = {Unit.SECONDS: "s", Unit.BYTES: "By", Unit.BYTES_PER_SECOND: "By/s", Unit.PER_SECOND: "1/s", Unit.RATIO: "1",
         Unit.COUNT: "1", None: "1"}


@dataclass(frozen=True, slots=True)
class OtlpOptions:
    """Where the collector listens."""

    url: str = option(help="the metrics endpoint, such as http://collector:4318/v1/metrics")
    all_branches: bool = option(False, help="push runs of every branch, not only of the main one")
    http: HttpOptions = option(HttpOptions(), help="timeout, certificates and credentials")


def render(result: Result, options: OtlpOptions) -> tuple[Payload, ...]:
    """One ExportMetricsServiceRequest. RefusedError where the extra is not installed."""
    if not (result.run.commit.main or options.all_branches):
        return ()
    try:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
        from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
    except ImportError as error:
        raise RefusedError(f"otlp needs {error.name}", next_step="pip install 'comm-regress[otlp]'") from error
    resource = ResourceMetrics()
    service = resource.resource.attributes.add(key="service.name")
    service.value.string_value = "comm-regress"
    _fill(resource, result.points())
    body = ExportMetricsServiceRequest(resource_metrics=[resource]).SerializeToString(deterministic=True)
    return (Payload(body, "application/x-protobuf", result.run.run_id),)


def _fill(resource: ResourceMetrics, points: Iterable[Point]) -> None:
    scope = resource.scope_metrics.add()
    scope.scope.name = "comm-regress"
    families: dict[str, list[Point]] = {}
    for point in points:
        families.setdefault(point.name, []).append(point)
    for name, members in families.items():
        metric = scope.metrics.add(name=name, unit=_UCUM[members[0].unit])
        for point in members:
            number = metric.gauge.data_points.add(time_unix_nano=point.time_ms * 1_000_000, as_double=point.value)
            for label, value in point.labels:
                number.attributes.add(key=label).value.string_value = value


def send(payload: Payload, options: OtlpOptions) -> str:
    """Push it; points that the collector rejected inside a 200 are an error as well."""
    try:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
    except ImportError as error:
        raise WithheldError(f"otlp needs {error.name}", where=http.shown(options.url),
                            next_step="pip install 'comm-regress[otlp]'") from error
    answer = http.send("POST", options.url, payload.body, {"Content-Type": payload.content_type}, options.http)
    if answer.body and "protobuf" in answer.content_type:
        partial = ExportMetricsServiceResponse.FromString(answer.body).partial_success
        if partial.rejected_data_points:
            raise RefusedError(f"{partial.rejected_data_points} points were rejected: {partial.error_message}",
                               where=http.shown(options.url))
    return f"{len(payload.body)} bytes pushed ({answer.status})"


OTLP = Sink("otlp", "OpenTelemetry metrics over HTTP, with the measurement's own time", OtlpOptions, render, send,
            lambda options: http.shown(options.url))
