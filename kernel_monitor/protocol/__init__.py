"""Types of the messages between kernel and page, and of the states and events in them.

They are the one description of the protocol. `make protocol` makes `widgets/src/stream/protocol.ts` from them, and
tests check golden messages and those of a real kernel against them (`tests/wire/schema.py`). Times are in seconds: of
the session if called `time`, `began` or `ended`, else Unix time. Durations have their unit in the name or are in ms,
shares are 0 to 1, and an unknown value is None.

Internal: no part of the public interface.
"""
