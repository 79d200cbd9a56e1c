"""What a user does first with an installed comm-regress, in this folder, which must be empty; any surprise ends it.

python -I .ci/smoke.py TRACES: TRACES is the folder of packed sample exports. Prints a line for each thing that worked.
Noise of the machine may give the second gate any verdict; that it compared is what counts.
"""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
GATE = ("pytest", "--comm-regress", "--comm-regress-device=cpu", "--comm-regress-launches=2",
        "--comm-regress-trace=kineto", "-k", "4KiB or ddp_step")
JUDGED = {"pass", "improvement", "regression", "inconclusive"}


def run(*command: str, statuses: tuple[int, ...] = (0,)) -> str:
    """What a program of this environment printed; ends everything when its status is another one."""
    # Where CI is set nothing is accepted, and what a user does at a desk is tried here.
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run([str(BIN / command[0]), *command[1:]], capture_output=True, text=True, check=False,
                          env=environment)
    if done.returncode not in statuses:
        raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    print(f"ok: {' '.join(command)}", flush=True)
    return done.stdout


def gate(number: int, statuses: tuple[int, ...]) -> tuple[str, dict[str, Any]]:
    """One gate: what it printed, and its result."""
    said = run(*GATE, f"--comm-regress-json=result{number}.json", f"--comm-regress-html=report{number}.html",
               statuses=statuses)
    return said, json.loads(Path(f"result{number}.json").read_text(encoding="utf-8"))


def expect(right: bool, what: str, shown: object) -> None:
    """Ends everything with what was shown unless it is right."""
    if not right:
        raise SystemExit(f"{what}:\n{shown}")


def main(traces: Path) -> None:
    """All of it, in the order of a first day."""
    expect(list(Path().iterdir()) == [], "the folder is not empty", list(Path().iterdir()))
    import regress  # noqa: PLC0415  -I keeps the checkout off the path: it must be the installed one

    expect("site-packages" in str(regress.__file__), "not the installed package", regress.__file__)

    said, result = gate(1, (0,))
    expect("NO BASELINE" in said and "Traceback" not in said, "the first gate has nothing to compare with", said)
    expect({case["verdict"] for case in result["cases"]} == {"no-baseline"}, "verdicts of the first gate", result)
    expect(len(result["cases"]) == 3, "cases", result)
    expect("\ntrace: " in said, "torch.profiler's trace of the first gate is kept", said)
    said, result = gate(2, (0, 1, 10))
    expect({case["verdict"] for case in result["cases"]} <= JUDGED, "the second gate compares", said)
    print(f"    compared: {result['verdict']}", flush=True)

    doctor = json.loads(run("regress", "doctor", "--json"))
    expect("gloo" in doctor["measures"], "doctor on a machine without a GPU", doctor)
    run("regress", "doctor")
    for which in ("thresholds", "result", "run"):
        schema = json.loads(run("regress", "schema", which))
        expect(schema.get("type") == "object" or "$ref" in schema, "a JSON Schema", schema)

    listed = json.loads(run("regress", "history", "list", "--json"))
    expect(len(listed) == 2, "two stored runs", listed)
    newest, oldest = (entry["run"] for entry in listed)
    run("regress", "history", "show", newest)
    run("regress", "compare", oldest, newest, statuses=(0, 1, 10))
    Path("runs.ndjson").write_text(run("regress", "history", "export"), encoding="utf-8")
    run("regress", "history", "import", "runs.ndjson", "--history", "copy")
    run("regress", "history", "reindex")
    run("regress", "history", "accept", oldest, "--reason", "smoke")
    run("regress", "show")
    run("regress", "report", "--output", "history.html", statuses=(4,))  # Bokeh is in the extra `report`

    Path("good.sqlite").write_bytes(lzma.decompress((traces / "mps" / "good.sqlite.xz").read_bytes()))
    explained = json.loads(run("regress", "explain", "good.sqlite", "--json"))
    expect(explained["ranks"] == 2, "ranks of the sample trace", explained)
    run("regress", "explain", "good.sqlite")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
