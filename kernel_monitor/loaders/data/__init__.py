"""Which file each sample is, whether it is sound, and its pixels on the torchvision path.

`file_source.py` locates and opens the files; `keyed_dataset.py` is the data set as workers see it; `file_check.py`
decides which files DALI may read.
"""
