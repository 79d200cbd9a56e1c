"""A stored run to the configured sinks, through the spool; nothing here changes a verdict."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from regress.catalog import Shelves
from regress.config import Config
from regress.publish import Result, Sink
from regress.publish.spool import Delivery, Spool
from regress.record import Run
from regress.units import counted


def configured_sinks(config: Config, shelves: Shelves) -> list[tuple[Sink[Any], Any]]:
    """The sinks that the thresholds file chooses, with their options."""
    return [(shelves.sinks[choice.sink], choice.options) for choice in config.sinks]


def repository_name(root: Path) -> str:
    """How the repository is called in labels: owner/name where CI says so, else the folder's name."""
    return os.environ.get("GITHUB_REPOSITORY") or os.environ.get("CI_PROJECT_PATH") or root.resolve().name


def spool_of(history: str | Path) -> Spool:
    """The spool beside a history folder; under the user's cache where the history is a server."""
    text = str(history)
    if "://" in text or ":/" in text:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return Spool(cache / "comm-regress" / "spool")
    return Spool(Path(text) / "spool")


def describe(deliveries: tuple[Delivery, ...]) -> list[str]:
    """What a reader of the run must know of its deliveries: problems, and payloads that wait."""
    told = [f"{delivery.sink}: {problem}" for delivery in deliveries for problem in delivery.problems]
    # In a pause nothing is tried, so nothing goes wrong: six hours of builds would look as if they were published.
    return told + [f"{delivery.sink}: kept for {delivery.destination}: {counted(delivery.kept, 'payload')}; "
                   "`regress publish sinks` tries at once"
                   for delivery in deliveries if delivery.kept and not delivery.problems]


def publish_run(config: Config, shelves: Shelves, run: Run, history: Path, root: Path) -> list[str]:
    """Sends a run to every configured sink; returns what went wrong, in sentences."""
    sinks = configured_sinks(config, shelves)
    if not sinks:
        return []
    result = Result(run, repository_name(root))
    spool = spool_of(history)
    try:
        return describe(spool.publish(sinks, result, time.time()))
    except OSError as error:  # a payload that was sent and cannot be removed, one that vanished: the run is stored
        return [f"publishing stopped: {error.filename or spool.folder}: {error.strerror or error}; once that is "
                f"mended, `regress publish sinks {run.run_id}`"]
