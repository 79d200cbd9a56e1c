from __future__ import annotations

import pytest

from regress.measure.agent import RankFailure
from regress.measure.failure import describe_failures, exit_words, hint, innermost, is_port_clash, root_first, tail


def test_the_killed_rank_is_the_cause_and_those_ended_by_the_engine_are_not() -> None:
    failures = [RankFailure(0, 1), RankFailure(1, -15), RankFailure(2, -11), RankFailure(3, 1)]
    assert [failure.rank for failure in root_first(failures)] == [2, 0, 3, 1]
    stderr = {2: "\n\nFatal Python error\n", 0: "connection closed"}
    text = describe_failures(failures, stderr, {2: "finished no operation"})
    assert text == ("rank 2 was ended by signal 11 (SIGSEGV) (finished no operation); rank 0 exited with status 1; "
                    "rank 3 exited with status 1\nlast lines of rank 2's stderr:\nFatal Python error")


@pytest.mark.parametrize(("printed", "fix"), [
    ("OSError: [Errno 28] No space left on device: '/dev/shm/nccl-x4'", "--shm-size=1g"),
    ("Error while creating shared memory segment /dev/shm/nccl-1 (size 9637888)", "--shm-size=1g"),
    ("The server socket has failed to bind: EADDRINUSE", "another process took the port"),
    ("ModuleNotFoundError: No module named 'torch'", "pip install torch"),
    ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000", "use fewer ranks"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "memory is full"),
    ("Cuda failure 801 'operation not supported'", "regress doctor"),
    ("ModuleNotFoundError: No module named 'torchvision'", None),
    ("RuntimeError: mat1 and mat2 shapes cannot be multiplied", None),
])
def test_faults_of_the_machine_come_with_the_fix(printed: str, fix: str | None) -> None:
    found = hint(printed)
    assert (found is None) if fix is None else (found is not None and fix in found)


def test_a_taken_port_is_known_by_either_wording() -> None:
    assert is_port_clash("[Errno 98] Address already in use")
    assert is_port_clash("EADDRINUSE")
    assert not is_port_clash("connection refused")


def test_ways_to_end() -> None:
    assert exit_words(3) == "exited with status 3"
    assert exit_words(-9) == "was ended by signal 9 (SIGKILL)"
    assert exit_words(-99) == "was ended by signal 99 (unknown)"


def test_the_tail_leaves_blank_lines_out() -> None:
    assert tail("a\n\nb  \n\nc\n", 2) == "b\nc"


def test_of_a_stack_the_innermost_calls_are_shown() -> None:
    text = ("a word\nThread 0x1 (most recent call first):\n  File \"a.py\", line 1 in wait\n\n"
            "Current thread 0x2 (most recent call first):\n" + "".join(f'  File "b.py", line {n} in f{n}\n'
                                                                       for n in range(9)))
    assert innermost(text, 2) == '  File "b.py", line 0 in f0\n  File "b.py", line 1 in f1'
    assert innermost("no stack\nat all\n", 1) == "at all"
