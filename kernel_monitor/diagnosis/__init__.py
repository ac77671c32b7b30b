"""*Diagnose*: measures every engine in the running loop, one after the other, and compares them.

`diagnose_command.py` starts a run (`diagnosis_run.py`, on a thread of its own), which watches the loop through
`loop_guard.py` and makes figures and the sentence with `trials.py`.
"""
