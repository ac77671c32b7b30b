"""Ordinary scripts, as strangers write them, run beside the same scripts on the plain DataLoader.

In go the cases of `cases.py`. `text.py` writes the script of a case, around a data set of `kinds.py`; `running.py` runs
it in a process of its own; `comparison.py` lists what differs from plain torch. First: `test_scripts.py`.
"""
