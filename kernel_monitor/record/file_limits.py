"""Limits of a recording, so that a file of unknown origin up to 100 MB is read within seconds and 500 MB of memory.

The recorder stays far below these limits; `docs/recordings.md` lists them. What exceeds a limit is damage: it is left
out and named, or the file is refused with a `SessionError`.
"""

from __future__ import annotations

INSTRUCTIONS = 20_000_000  # instructions of SQLite's machine that one question to a file may take: one or two seconds
SCHEMA_INSTRUCTIONS = 10_000  # the same for reading its schema, each of whose rows is a statement to be parsed
ROW_BYTES = 16 << 20  # bytes of one row of any table
STATEMENT_BYTES = 4096  # bytes of one `CREATE TABLE` in the file's schema

TEXT_BYTES = 8 << 20  # characters of one JSON text; also of all events, and of all layouts, together
TEXT_VALUES = 400_000  # values in one JSON text; also in all events, and in all layouts, together
TEXT_DEPTH = 24  # lists and objects inside each other in one JSON text
INTEGER = 1 << 53  # the largest integer that every reader of JSON holds exactly

ORIGIN_S = 8e9  # the latest session time 0, Unix s: the year 2223. pandas ends in 2262
SESSION_S = 3.2e8  # the furthest session time from 0, s: ten years
INTERVAL_S = (0.001, 86_400.0)  # seconds between two rows: the least and the most

EVENTS = 60_000  # events that are read, the newest; the recorder keeps 50,000
EVENTS_SHOWN = 1_000  # events of each kind in a snapshot, the newest
SEGMENTS = 400
"""Segments that the changes in a snapshot may make: one for each switch and knob, one for each loader of a mark."""
EPOCHS = 2_000  # epochs in a snapshot, of all loaders together, the newest
LAYOUTS = 5_000  # layouts that are read, the newest
LOADERS = 256  # loaders whose states and steps are read, the newest
NODES = 256  # other machines that are read, the newest
RANKS = 1024  # ranks that are read, the newest
SERIES = 16_384  # series of one layout, and of all together
CPUS = 8_192  # logical cores
GPUS = 128  # GPUs
NAME = 300  # characters of a series' name and of a loader's

BLOCKS = 100_000  # runs of rows (chunks, batches of the tail) in a file; the recorder makes one a minute
BLOCK_ROWS = 10_000  # rows of one block; the recorder packs 700 at most
BLOCK_VALUES = 4 << 20  # values of one block; the recorder packs 2 MiB, half a million, at a time
BLOCK_COST = 4_000  # values that are decoded in the time that a block takes beside its values
FAMILY_COST = 1_000  # the same for a family of its series
STEPS_BLOCK = 200_000  # steps of one block; the recorder packs some 5,000

VALUES = 64 << 20  # values that `rows` and `to_pandas` give by default: 256 MiB of float32
SHOWN_VALUES = 96 << 20  # values that are decoded for a snapshot; of a longer session, evenly chosen blocks
SNAPSHOT_VALUES = 24 << 20  # values of a snapshot: with more than 4,000 series it has fewer rows than it might
STEPS = 2_000_000  # steps that `steps` gives by default, and that are decoded for a snapshot

MAGNITUDE = 1e24  # a value beyond is no measurement: it is read as missing
