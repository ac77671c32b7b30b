"""`python -m kernel_monitor`: the command `kernel-monitor`, where only the Python is known that it is installed for."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
