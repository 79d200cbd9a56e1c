"""`python -m regress`: the `regress` command where its script is not on PATH, or to choose the interpreter."""

from __future__ import annotations

import sys

from regress.cli import main

if __name__ == "__main__":
    sys.exit(main())
