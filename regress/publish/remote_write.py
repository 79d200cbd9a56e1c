"""remote_write: Prometheus remote-write 1.0, with the time of the measurement, in one request.

For Prometheus from 2.42 (`--web.enable-remote-write-receiver`, and an out-of-order window where runs may arrive late),
VictoriaMetrics, Mimir, Thanos and the many others that speak it.
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass
from urllib.parse import urlencode

from regress.delivery import Payload, RefusedError, UnreachableError, http
from regress.delivery.http import HttpOptions
from regress.delivery.remote_write_form import CONTENT_TYPE, HEADERS, snappy, write_request
from regress.delivery.series import Point
from regress.errors import PublishError
from regress.options import Form, option
from regress.publish import Result, Sink

_MOST_POINTS = 10_000
_TOO_OLD = re.compile(r"out of bounds|too old|out.of.order", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RemoteWriteOptions:
    """Where to write, and where to read back for `--verify`."""

    url: str = option(help="the write endpoint, such as http://prometheus:9090/api/v1/write")
    query_url: str | None = option(None, help="base of the query API for --verify, such as http://prometheus:9090")
    verify_within: float = option(30.0, help="how long a value may take to become readable", form=Form.DURATION)
    all_branches: bool = option(False, help="push runs of every branch, not only of the main one")
    http: HttpOptions = option(HttpOptions(), help="timeout, certificates and credentials")


def render(result: Result, options: RemoteWriteOptions) -> tuple[Payload, ...]:
    """One request for up to 10,000 series, which is far beyond what a run has."""
    if not (result.run.commit.main or options.all_branches):
        return ()
    points = result.points()
    return tuple(Payload(snappy(write_request(points[start:start + _MOST_POINTS])), CONTENT_TYPE, result.run.run_id,
                         headers=dict(HEADERS)) for start in range(0, len(points), _MOST_POINTS))


def send(payload: Payload, options: RemoteWriteOptions) -> str:
    """Push it; a refusal for age names the server's setting."""
    try:
        answer = http.send("POST", options.url, payload.body,
                           {"Content-Type": payload.content_type, **payload.headers}, options.http)
    except (RefusedError, UnreachableError) as error:
        # Prometheus 2.42 says "too old" with status 500, which would be tried again for ever.
        if error.seen.startswith("the server said") and _TOO_OLD.search(error.seen):
            raise RefusedError(error.seen, where=error.where, next_step=(
                "the server takes no samples that old: set storage.tsdb.out_of_order_time_window (Prometheus) "
                "or -retentionPeriod (VictoriaMetrics)")) from error
        if error.seen.startswith("the server said 404"):
            raise RefusedError(error.seen, where=error.where, next_step=(
                "start Prometheus with --web.enable-remote-write-receiver, and check the path /api/v1/write")) \
                from error
        raise
    return f"{len(payload.body)} bytes pushed ({answer.status})"


def verify(result: Result, options: RemoteWriteOptions) -> str:
    """Read the run's verdict back and compare value and time to the millisecond.

    Waits as long as `verify_within`: some servers show a value only seconds after they took it.
    """
    wanted = next(point for point in result.points() if point.name == "comm_regress_run_verdict_code")
    if options.query_url is None:
        raise RefusedError("there is no query_url to read from", accepted="query_url: http://server:port")
    deadline = time.monotonic() + options.verify_within
    while True:
        found = _read(wanted, options, options.query_url)
        if any(at == wanted.time_ms and math.isclose(value, wanted.value, rel_tol=1e-12) for at, value in found):
            return f"{wanted.name} reads {wanted.value:g} at {wanted.time_ms} ms"
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    seen = ", ".join(f"{value:g} at {moment} ms" for moment, value in found[-3:]) or "nothing"
    raise PublishError(f"{wanted.name} should read {wanted.value:g} at {wanted.time_ms} ms and reads {seen}",
                       where=http.shown(options.query_url),
                       next_step="the server may have dropped it: see its log, retention and time limits")


def _read(wanted: Point, options: RemoteWriteOptions, base: str) -> list[tuple[int, float]]:
    """The stored samples of the series within a second of the point, as (milliseconds, value)."""
    selector = wanted.name + "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in wanted.labels) + "}[2s]"
    query = urlencode({"query": selector, "time": f"{(wanted.time_ms + 1000) / 1000:.3f}"})
    answer = http.send("GET", f"{base.rstrip('/')}/api/v1/query?{query}", None, {}, options.http)
    try:
        series = json.loads(answer.body)["data"]["result"]
        return [(round(float(moment) * 1000), float(value)) for one in series for moment, value in one["values"]]
    except (ValueError, KeyError, TypeError) as error:
        raise RefusedError(f"no answer of a query API: {answer.text}", where=http.shown(base)) from error


REMOTE_WRITE = Sink("remote_write", "Prometheus remote-write 1.0, with the measurement's own time", RemoteWriteOptions,
                    render, send, lambda options: http.shown(options.url), verify)
