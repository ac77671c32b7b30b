"""*Profile 10 steps*: torch's profiler over some steps of the running loop, and its operators as tables.

`profile_command.py` starts a run (`profile_run.py`), which starts and stops the profiler on the loop's thread
(`torch_profile.py`) and has the trace read by another process (`operators.py`).
"""
