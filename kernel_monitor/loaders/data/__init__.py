"""Which file each sample is, whether it is sound, and its pixels on the torchvision path.

In: the user's data set. Out: for a slot of the plan its samples, or which file could not be read. `file_source.py`
locates and opens the files; `keyed_dataset.py` is the data set as workers see it; `file_check.py` decides which files
DALI may read.
"""
