"""Changing the engine in the middle of an epoch; docs/architecture.md follows a switch through these modules.

`EnginePool` makes the engines, and replaces those whose knobs are turned. Each is a `PooledEngine`, used by one
`EngineRun` at a time. `Preparation` gets one ready, `SwitchState` has what was requested and what is active, and
`EpochIterator` delivers.

Internal: no part of the public interface.
"""
