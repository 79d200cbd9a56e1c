"""file: OpenMetrics text for node exporter's textfile collector, or for anything else that reads a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regress.delivery import Payload, UnreachableError
from regress.delivery.text import CONTENT_TYPE, exposition
from regress.options import option
from regress.publish import Result, Sink
from regress.whole_file import write_whole


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Where the latest run is written; the file is replaced whole."""

    path: str = option(help="the file; node exporter reads *.prom in its textfile folder")
    all_branches: bool = option(False, help="write runs of every branch, not only of the main one")


def render(result: Result, options: FileOptions) -> tuple[Payload, ...]:
    """The latest values, without times: the collector refuses them and the scrape gives its own."""
    if not (result.run.commit.main or options.all_branches):
        return ()
    return (Payload(exposition(result.points()), CONTENT_TYPE, result.run.run_id),)


def send(payload: Payload, options: FileOptions) -> str:
    """Replace the file in one step, so that a collector never reads half of it."""
    target = Path(options.path)
    try:
        target = target.expanduser()
        target.parent.mkdir(parents=True, exist_ok=True)
        # The collector runs as another user.
        write_whole(target, payload.body, mode=0o644)
    except (OSError, RuntimeError) as error:  # the latter where ~ names nobody
        raise UnreachableError(f"cannot be written: {getattr(error, 'strerror', None) or error}", where=str(target),
                               accepted="a file in a folder that this user may write") from error
    return f"{target} written"


FILE = Sink("file", "OpenMetrics text in a file, for node exporter's textfile collector", FileOptions, render, send,
            lambda options: options.path)
