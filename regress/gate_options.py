"""The gate's flags, declared once for both faces: `--comm-regress-NAME` of pytest and `--NAME` of `regress run`."""

from __future__ import annotations

from typing import Any

GATE_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("config", {"metavar": "PATH", "help": "thresholds file (default: thresholds.yaml of the rootdir, "
                                            "else the packaged one)"}),
    ("history", {"metavar": "URL", "help": "history folder (default: .comm-regress) or postgresql://..."}),
    ("device", {"choices": ("auto", "cuda", "cpu"), "default": "auto",
                "help": "NCCL on GPUs (cuda), gloo on the CPU (cpu), or whichever is there (default: auto)"}),
    ("launches", {"metavar": "N", "type": int, "help": "fresh launches per case (default: the device's profile, 3)"}),
    ("budget", {"metavar": "SECONDS", "type": float, "help": "wall-clock bound for the whole gate (default: 900)"}),
    ("trace", {"choices": ("auto", "nsys", "kineto", "none"), "default": "auto",
               "help": "tracer that explains the run (default: auto: nsys where found, else torch.profiler)"}),
    ("base", {"metavar": "REF", "help": "confirm a suspicion by measuring REF and HEAD interleaved, e.g. origin/main"}),
    ("accept", {"metavar": "REASON", "help": "make this run the new anchor that later runs are compared with"}),
    ("json", {"metavar": "PATH", "help": "write the result as JSON"}),
    ("html", {"metavar": "PATH", "help": "write the history report as one HTML page"}),
)
"""(name, settings as argparse's add_argument takes them)."""
