"""webhook: the run as our own JSON, to any URL, signed so that the receiver can tell that it is ours.

The body is `{"event": "run", "repository": ..., "run": ...}`; the run has the stored form (`regress schema run`)
without raw samples. `X-Comm-Regress-Delivery` is the same for every try of one run: a receiver drops repeats by it.

`X-Comm-Regress-Signature: t=<seconds>,v1=<hex>` is HMAC-SHA256 (RFC 2104) with the shared secret over the text
`<seconds>.` followed by the body. The receiver recomputes it, compares in constant time, and refuses old times.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass

from regress.delivery import Payload, http
from regress.delivery.http import HttpOptions, secret
from regress.options import option
from regress.publish import Result, Sink
from regress.record import to_json, without_samples


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """Where to post, and which secret signs it."""

    url: str = option(help="the URL that takes the JSON")
    secret_env: str | None = option(None, help="environment variable that holds the shared secret; unsigned without")
    all_branches: bool = option(False, help="post runs of every branch, not only of the main one")
    http: HttpOptions = option(HttpOptions(), help="timeout, certificates and credentials")


def render(result: Result, options: WebhookOptions) -> tuple[Payload, ...]:
    """The JSON without its signature: that belongs to the moment of sending."""
    run = result.run
    if not (run.commit.main or options.all_branches):
        return ()
    body = to_json({"event": "run", "repository": result.repository, "run": without_samples(run)})
    return (Payload(body, "application/json", run.run_id,
                    headers={"X-Comm-Regress-Delivery": f"{run.run_id}-{run.attempt}"}),)


def signature(key: str, moment: int, body: bytes) -> str:
    """The header's value for a body sent at `moment` (seconds since the epoch)."""
    digest = hmac.new(key.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={digest}"


def send(payload: Payload, options: WebhookOptions) -> str:
    """Post it, signed where a secret is named."""
    headers = {"Content-Type": payload.content_type, **payload.headers}
    if options.secret_env is not None:
        key = secret(options.secret_env, http.shown(options.url))
        headers["X-Comm-Regress-Signature"] = signature(key, int(time.time()), payload.body)
    answer = http.send("POST", options.url, payload.body, headers, options.http)
    return f"{len(payload.body)} bytes posted ({answer.status})"


WEBHOOK = Sink("webhook", "the run as JSON, signed with HMAC", WebhookOptions, render, send,
               lambda options: http.shown(options.url))
