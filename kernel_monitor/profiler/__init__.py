"""*Profile 10 steps*: torch's profiler over some steps of the running loop, and its operators as tables.

Optional: see `kernel_monitor.plugins`. `plugin.py` has the command; it starts a run (`profile_run.py`), which starts
and stops the profiler on the loop's thread and has the trace read by another process (`operators.py`).

Internal: no part of the public interface.
"""
