"""The files of the profiler's traces: beside the recording of their session, for as long as that exists."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MOST = 50  # traces kept in a folder; the oldest go
PART = "-profile-"


def new_trace(recording: str | os.PathLike[str] | None) -> Path:
    """A new name for a trace: `SESSION-profile-1.json.gz`, or, without a recording, in a folder of its own in /tmp.

    Raises:
        OSError: there is no room for it.
    """
    if recording is None:
        return Path(tempfile.mkdtemp(prefix="kernel-monitor-trace-"), "profile-1.json.gz")
    session = Path(recording)
    prune(session.parent)
    number = 1
    while (place := session.with_name(f"{session.stem}{PART}{number}.json.gz")).exists():
        number += 1
    return place


def prune(folder: Path) -> list[Path]:
    """Delete traces whose recording is gone, and the oldest where there are many; returns which."""
    traces = sorted(folder.glob(f"*{PART}*.json.gz"), key=lambda trace: trace.stat().st_mtime)
    alone = [trace for trace in traces if not (folder / f"{trace.name.rsplit(PART, 1)[0]}.kmsession").exists()]
    kept = [trace for trace in traces if trace not in alone]
    gone = [*alone, *kept[: max(0, len(kept) - MOST + 1)]]
    for trace in gone:
        trace.unlink(missing_ok=True)
    return gone
