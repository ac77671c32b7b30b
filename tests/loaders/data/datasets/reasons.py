"""Why an engine or a sample is not DALI's: each a regular expression that the message of the product must match.

A phrase is what a user reads, as the end of "The data set …" or "The sample …".
"""

from __future__ import annotations

# What it reads.
NO_IMAGE = "opens no image file"
IN_MEMORY = "takes its samples decoded from memory: nothing is decoded in an epoch, and a switch would make it slower"
UNKNOWN_OPENER = "by a function that is known"  # of the same sentence, where it does open one
TWO_IMAGES = "opens more than one image"
UNOPENED = "could not be opened"
NO_FORMAT = "neither a JPEG"  # in the words of image_formats.py
CUT_OFF = "is cut off"  # in the words of file_check.py
TURNED = "EXIF orientation"  # in the words of dali_batch.py
CMYK = "4 components"  # in those of jpeg.py

# What it does with the image.
NOT_RGB = "is not made RGB"  # as L, RGBA or YCbCr, BGR as cv2 gives it, or in the file's own mode
PIXELS = "works on the pixels itself"  # reads or changes them before a transform, or instead of one
DIFFERENT = "different transforms"  # one sample has this, another has that
JOINT = "transforms image and target together"
AFTERWARDS = "changes the image after the transform"
NOT_FOUND = "image is not found in what it returns"
ONLY_DECODED = "all that DALI would do is decode"  # in those of own_traces.py
DERIVED = "computes more than images from an image's pixels"
OTHER_MODE = "opens its images in the mode"
DECODES_ONLY = "would only decode"  # in the words of obstacles.py

# What else it does.
NOT_THE_SAME = "is not the same twice"  # the rest of the sample, for one index and one seed
KEEPS = "keeps the image"  # that it decoded last, or another
CACHED = "after the first epoch nothing is decoded any more, and a switch would make it slower"
FORGETS = "keeps only the last 5 of its 24 images in an lru_cache"
CHANGES = "changes its own attributes"
WRITES = "writes files"
BATCHES = "other rows one by one than in a batch"  # in the words of hugging_face.py
MAPPED = "rows in files that are mapped into memory"
SEVERAL = "opens several images for a sample, or transforms one more than once"  # in the words of file_source.py
OWN_BATCHES = "has a __getitems__ of its own"  # in the words of layouts.py


def either(*reasons: str) -> str:
    """Whichever the product meets first."""
    return "|".join(reasons)
