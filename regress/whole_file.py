"""A file appears whole or not at all, and is on the disk when the call returns."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_whole(target: Path, content: bytes, *, overwrite: bool = True, mode: int | None = None) -> None:
    """Write under a temporary hidden name in the same folder, flush, put in place, flush the folder.

    overwrite: False lets an existing file win. mode: permission bits other than the process's default.
    Raises OSError when the disk does not take it; nothing is left behind then.
    """
    temporary = target.with_name(f".{target.name[:80]}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if mode is not None:
            temporary.chmod(mode)
        if overwrite or not target.exists():
            temporary.replace(target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        if target.parent.is_dir():
            temporary.unlink(missing_ok=True)
        raise
    temporary.unlink(missing_ok=True)
