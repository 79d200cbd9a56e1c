"""What torchrun starts: a rank process. `python -m regress.measure.rank LAUNCH.json`."""

from __future__ import annotations

import importlib
import os
import sys

from regress.shelf import beside_package


def main(spec_path: str) -> int:
    """Runs the launch's cases on this rank with the harness that was installed beside `regress`; the exit status."""
    harness = importlib.import_module(f"{beside_package('benchmarks').__name__}.harness")
    status: int = harness.main(spec_path)
    return status


if __name__ == "__main__":
    exit_status = main(sys.argv[1])
    if exit_status:
        # Not sys.exit: taking down a communicator whose peers are gone may wait for them for ever.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_status)
