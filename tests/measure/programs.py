"""Tiny rank programs without torch: each is the text of a script that gets the launch file as its argument."""

from __future__ import annotations

from pathlib import Path

_PRELUDE = '''
import json, os, signal, subprocess, sys, time
from pathlib import Path
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
spec = json.loads(Path(sys.argv[1]).read_text())
folder = Path(spec["results_dir"])

def say(operation, done, case=""):
    with (folder / f"rank{rank}.progress.jsonl").open("a") as stream:
        stream.write(json.dumps({"unix_time": time.time(), "case": case, "operation": operation, "done": done}) + "\\n")

def leave(position, case):
    result = {"rank": rank, "world_size": world, "case": case, "seconds": {"isolated": [0.001 * (rank + 1)]}}
    (folder / f"rank{rank}.case{position}.json").write_text(json.dumps(result))

def run():
    for position, case in enumerate(spec["cases"]):
        say("isolated", False, case["workload"])
        leave(position, case)
        say("isolated", True, case["workload"])
'''

WELL = "run()"
CHATTY = 'run()\nprint("out", rank)\nprint("err", rank, file=sys.stderr)'
ENVIRONMENT = ('run()\n(folder / f"env{rank}.json").write_text(json.dumps({**os.environ, "cwd": os.getcwd(), '
               '"path": ":".join(sys.path)}))')
DIES_BEFORE = 'if rank == 1:\n    sys.exit("no device for me")\ntime.sleep(60)'
DIES_DURING = '''
say("warm-up", True, "allreduce")
say("isolated", False, "allreduce")
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
'''
DIES_AFTER = 'run()\nif rank == 0:\n    print("teardown failed", file=sys.stderr)\n    sys.exit(3)'
LEAVES_EARLY = 'if rank == 1:\n    sys.exit(0)\nrun()'
HANGS = '''
say("warm-up", True, "allreduce")
say("isolated", False, "allreduce")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
(folder / f"child{rank}").write_text(str(child.pid))
signal.signal(signal.SIGTERM, signal.SIG_IGN)

def stuck_in_collective():
    time.sleep(300)

if rank == 1:
    say("isolated", True, "allreduce")
stuck_in_collective()
'''
LEAVES_A_PEER_WAITING = '''
say("isolated", False, "allreduce")
if rank == 1:
    sys.exit(0)
time.sleep(300)
'''
LITTERS = '''
run()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
(folder / f"child{rank}").write_text(str(child.pid))
'''
PORT_TAKEN_ONCE = '''
if not folder.name.endswith("-2"):
    sys.exit("RuntimeError: The server socket has failed to listen: EADDRINUSE")
run()
'''
SHM = '''
if rank == 0:
    sys.exit("Error while creating shared memory segment /dev/shm/nccl-x (size 1): No space left on device (28)")
time.sleep(60)
'''


def write_program(folder: Path, body: str) -> tuple[str, ...]:
    """The script in a file, as TorchrunLauncher's `program`."""
    path = folder / "rank_program.py"
    path.write_text(_PRELUDE + body)
    return (str(path),)
