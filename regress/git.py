"""The one way in which git is asked: without a prompt, within a time, and in anybody's checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

QUESTION_SECONDS = 30
"""For what git answers from its own files."""


def run_git(folder: Path, *arguments: str, seconds: float = QUESTION_SECONDS, given: str = ""
            ) -> subprocess.CompletedProcess[str]:
    """What git did. given: its standard input. A status that is no 0, with the reason as its stderr, also where there
    is no git or it did not end in time.

    safe.directory: in a CI container the checkout often belongs to another user, and git would refuse to read it; the
    gate is about to run that code anyway.
    """
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *arguments]
    try:
        return subprocess.run(
            command, input=given, capture_output=True, text=True, errors="replace", timeout=seconds, check=False,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"})
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"git did not end within {seconds:g} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", error.strerror or str(error))


def ask_git(folder: Path, *arguments: str, seconds: float = QUESTION_SECONDS, given: str = "") -> str | None:
    """What git prints, None where it fails or is not there."""
    done = run_git(folder, *arguments, seconds=seconds, given=given)
    return done.stdout.strip() if done.returncode == 0 else None
