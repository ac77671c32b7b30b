"""*Diagnose*: measures every engine in the running loop, one after the other, and compares them.

`diagnosis_run.py` has the command and its run, which watches the loop on a thread of its own; `trials.py` makes the
figures and the sentence of what the engines did.

Internal: no part of the public interface.
"""
