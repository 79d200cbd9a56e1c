"""influx: InfluxDB line protocol over HTTP, for InfluxDB 1 and 2, VictoriaMetrics and Telegraf.

https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from regress.delivery import Payload, http
from regress.delivery.http import HttpOptions, header_secret
from regress.delivery.series import Point
from regress.options import option
from regress.publish import Result, Sink


@dataclass(frozen=True, slots=True)
class InfluxOptions:
    """Where to write. InfluxDB 2 wants its token in a header of its own form."""

    url: str = option(help="the write endpoint with its database or bucket, such as http://influx:8086/write?db=perf")
    token_env: str | None = option(None, help="environment variable that holds an InfluxDB 2 token")
    all_branches: bool = option(False, help="push runs of every branch, not only of the main one")
    http: HttpOptions = option(HttpOptions(), help="timeout, certificates and credentials")


def render(result: Result, options: InfluxOptions) -> tuple[Payload, ...]:
    """One line for each series, with the time of the measurement in milliseconds."""
    if not (result.run.commit.main or options.all_branches):
        return ()
    body = "".join(f"{_line(point)}\n" for point in result.points())
    return (Payload(body.encode(), "text/plain; charset=utf-8", result.run.run_id),)


def _line(point: Point) -> str:
    tags = "".join(f",{name}={_tag(value)}" for name, value in point.labels)
    return f"{point.name}{tags} value={point.value!r} {point.time_ms}"


def _tag(value: str) -> str:
    """Commas, equals signs and spaces are escaped; a trailing backslash would escape what follows, so it is cut."""
    for mark in (",", "=", " "):
        value = value.replace(mark, f"\\{mark}")
    return value.rstrip("\\") or "_"


def send(payload: Payload, options: InfluxOptions) -> str:
    """Write the lines, their times in milliseconds."""
    base, _, query = options.url.partition("#")[0].partition("?")
    query = urlencode([*((k, v) for k, v in parse_qsl(query) if k != "precision"), ("precision", "ms")])
    headers = {"Content-Type": payload.content_type}
    if options.token_env is not None:
        headers["Authorization"] = f"Token {header_secret(options.token_env, http.shown(options.url))}"
    answer = http.send("POST", f"{base}?{query}", payload.body, headers, options.http)
    return f"{len(payload.body)} bytes written ({answer.status})"


def destination(options: InfluxOptions) -> str:
    """The endpoint with its database or bucket, which alone tell two destinations of one server apart."""
    named = [(name, value) for name, value in parse_qsl(options.url.partition("#")[0].partition("?")[2])
             if name in ("db", "rp", "org", "bucket")]
    return http.shown(options.url) + (f"?{urlencode(named)}" if named else "")


INFLUX = Sink("influx", "InfluxDB line protocol, with the measurement's own time", InfluxOptions, render, send,
              destination)
