"""Data sets that people write themselves: what their `__getitem__` does, learnt by calling it.

A sample's index goes in; the image file, the place of the image in the sample, and the rest of the sample come out,
without any pixel being decoded. `own_dataset.py` is where to begin: it learns, proves and then reads. `calls.py` and
`dry_call.py` have what is remembered of one call, `lazy_image.py` and `openers.py` the image that is not decoded,
`view.py` how the data set's transforms are replaced, `watch.py` what it changes, `structure.py` the samples.
"""
