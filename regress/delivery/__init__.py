"""What sinks share: the payload, the series a run becomes, and one careful way to speak HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field

from regress.errors import PublishError


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes for one destination. Holds no secret: it may lie in the spool for days.

    target: what is added to the destination (a path below a URL, a file's name); empty for the destination itself.
    headers: beside the content type. run_id: the run it came from.
    """

    body: bytes
    content_type: str
    run_id: str
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)


class RefusedError(PublishError):
    """The destination will not take this payload however often it is sent: what it answered says so, or its address.

    Never for what is missing on this side: another process may have it.
    """


class UnreachableError(PublishError):
    """The destination did not answer, or asked to come back later.

    retry_after_seconds: what it asked for, None where it did not say.
    """

    retry_after_seconds: float | None = None


class WithheldError(UnreachableError):
    """Nothing was sent, because this process lacks what sending needs: a secret, a certificate file, a package.

    That is no try: the payload waits, as it is, for a process that has it.
    """
