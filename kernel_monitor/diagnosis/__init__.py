"""*Diagnose* and *Tune*: measure engines, or whole settings, of a loader in the running loop.

`loop_command.py` has the commands. `loop_run.py` is a run beside the loop, which `loop_guard.py` watches;
`diagnosis_run.py` compares the engines, `tune_run.py` searches the setting that brings the most images/s, in the order
of `search.py`. `trials.py` makes the figures.

Internal: no part of the public interface.
"""
