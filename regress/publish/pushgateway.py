"""pushgateway: the latest values for Prometheus to scrape, where nothing but a Pushgateway is at hand.

It keeps one value until the next push, at the time of the scrape: runs between two scrapes are not seen, and a run
stays "current" for ever. `comm_regress_run_end_timestamp_seconds` tells how old it is. Prefer remote_write.
https://github.com/prometheus/pushgateway/blob/master/README.md
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from urllib.parse import quote

from regress.delivery import Payload, RefusedError, http
from regress.delivery.http import HttpOptions
from regress.delivery.series import run_labels
from regress.delivery.text import CONTENT_TYPE, exposition
from regress.options import option
from regress.publish import Result, Sink


@dataclass(frozen=True, slots=True)
class PushgatewayOptions:
    """Where the gateway is."""

    url: str = option(help="base of the gateway, such as http://pushgateway:9091")
    job: str = option("comm_regress", help="the job label")
    all_branches: bool = option(False, help="push runs of every branch, not only of the main one")
    http: HttpOptions = option(HttpOptions(), help="timeout, certificates and credentials")


def render(result: Result, options: PushgatewayOptions) -> tuple[Payload, ...]:
    """One group for each repository, machine class and branch class, replaced whole by each run."""
    if not (result.run.commit.main or options.all_branches):
        return ()
    labels = run_labels(result.run, result.repository)
    group = [(name, labels[name]) for name in ("repo", "host_class", "branch") if name in labels]
    path = "".join(f"/{_segment(name, value)}" for name, value in [("job", options.job), *group])
    return (Payload(exposition(result.points()), CONTENT_TYPE, result.run.run_id, target=f"/metrics{path}"),)


def _segment(name: str, value: str) -> str:
    """A grouping label in the path; values with a slash must be base64, as the gateway's API says."""
    if "/" in value:
        return f"{name}@base64/{base64.urlsafe_b64encode(value.encode()).decode()}"
    return f"{name}/{quote(value, safe='')}"


def send(payload: Payload, options: PushgatewayOptions) -> str:
    """Replace the group. A refusal is often a family of the same name that another job pushed with another type."""
    try:
        answer = http.send("PUT", options.url.rstrip("/") + payload.target, payload.body,
                           {"Content-Type": payload.content_type}, options.http)
    except RefusedError as error:
        raise RefusedError(error.seen, where=error.where, next_step=error.next_step or (
            "another job may have pushed a family of this name with another type: look at the gateway's page")) \
            from error
    return f"{len(payload.body)} bytes pushed ({answer.status})"


PUSHGATEWAY = Sink("pushgateway", "the latest values, for Prometheus to scrape from a Pushgateway", PushgatewayOptions,
                   render, send, lambda options: http.shown(options.url))
