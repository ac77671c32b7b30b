"""Changing the engine in the middle of an epoch.

The way of a switch:

1. `loader.switch(name)`, from any thread, enters a `Click` in the `SwitchState` and returns (`switch.py`).
2. `Preparation` builds the engine on a thread of its own, and reports it ready or failed; the engine in use delivers.
3. Once it is ready it is `SwitchState.active`: the engine that takes batches from the plan.
4. At each batch boundary `EpochIterator` (`epoch.py`) compares the active engine with the running one. If it differs,
   the `EngineRun` of the outgoing engine is closed, and a run of the incoming engine takes on from the plan's cursor.
5. The loop receives the outgoing run's last batches, then the incoming run's first: the `Click` is done.

`EnginePool` makes the engines, and replaces those whose knobs are turned. Each is a `PooledEngine`, used by one
run at a time.
"""
