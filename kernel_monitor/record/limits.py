"""What a recording may hold, so that a file of unknown origin up to 100 MB is read within seconds and 500 MB of memory.

The recorder stays far below these limits; `docs/recordings.md` lists them. What exceeds one is damage: it is left out
and named, or the file is refused with a `SessionError`.
"""

from __future__ import annotations

INSTRUCTIONS = 20_000_000
"""Instructions of SQLite's machine that one question to a file may take: one or two seconds."""
SCHEMA_INSTRUCTIONS = 10_000
"""The same of reading its schema, each of whose rows is a statement to be parsed."""
ROW_BYTES = 16 << 20
"""Bytes of one row of any table."""
STATEMENT_BYTES = 4096
"""Bytes of one `CREATE TABLE` in the file's schema."""

TEXT_BYTES = 8 << 20
"""Characters of one JSON text; also of all events, and of all layouts, together."""
TEXT_VALUES = 400_000
"""Values in one JSON text; also in all events, and in all layouts, together."""
TEXT_DEPTH = 24
"""Lists and objects inside each other in one JSON text."""
INTEGER = 1 << 53
"""The largest integer that every reader of JSON holds exactly."""

ORIGIN_S = 8e9
"""The latest session time 0, Unix s: the year 2223. pandas ends in 2262."""
SESSION_S = 3.2e8
"""The furthest session time from 0, s: ten years."""
INTERVAL_S = (0.001, 86_400.0)
"""Seconds between two rows: the least and the most."""

EVENTS = 60_000
"""Events that are read, the newest; the recorder keeps 50,000."""
EVENTS_SHOWN = 1_000
"""Events of each kind in a snapshot, the newest."""
STRETCHES = 400
"""Stretches that the changes in a snapshot may make: one for each switch and knob, one for each loader of a mark."""
EPOCHS = 2_000
"""Epochs in a snapshot, of all loaders together, the newest."""
LAYOUTS = 5_000
"""Layouts that are read, the newest."""
LOADERS = 256
"""Loaders whose states and steps are read, the newest."""
SERIES = 16_384
"""Series of one layout, and of all together."""
CPUS = 8_192
"""Logical cores."""
GPUS = 128
"""GPUs."""
NAME = 300
"""Characters of a series' name and of a loader's."""

BLOCKS = 100_000
"""Runs of rows (chunks, batches of the tail) in a file; the recorder makes one a minute."""
BLOCK_ROWS = 10_000
"""Rows of one block; the recorder packs 700 at most."""
BLOCK_VALUES = 4 << 20
"""Values of one block; the recorder packs 2 MiB, half a million, at a time."""
BLOCK_COST = 4_000
"""Values that are decoded in the time that a block takes beside its values."""
FAMILY_COST = 1_000
"""The same of a family of its series."""
STEPS_BLOCK = 200_000
"""Steps of one block; the recorder packs some 5,000."""

VALUES = 64 << 20
"""Values that `rows` and `to_pandas` give unless they are told to give more: 256 MiB of float32."""
SHOWN_VALUES = 96 << 20
"""Values that are decoded for a snapshot; of a longer session, evenly chosen blocks."""
SNAPSHOT_VALUES = 24 << 20
"""Values of a snapshot: with more than 4,000 series it has fewer rows than it might."""
STEPS = 2_000_000
"""Steps that `steps` gives unless it is told to give more, and that are decoded for a snapshot."""

MAGNITUDE = 1e24
"""A value beyond is no measurement: it is read as missing."""
