"""Which scripts a run takes: SCRIPTS and SCRIPTS_SEED, see `test_scripts`."""

from __future__ import annotations

import os
from pathlib import Path

KIND, _, GIVEN = os.environ.get("SCRIPTS", "").partition(":")
LONG = KIND == "long"
SEED = int(GIVEN or os.environ.get("SCRIPTS_SEED") or int.from_bytes(os.urandom(3), "little"))
AGAIN = f"SCRIPTS=long:{SEED}" if LONG else f"SCRIPTS_SEED={SEED}"


def told(wrong: list[str], script: Path, err: str = "") -> str:
    """What is wrong with a script, where it is, how to run it again, and the end of what it wrote to stderr."""
    return "\n".join([*wrong, f"{script} (to play these scripts again: {AGAIN})", err[-3000:]])
