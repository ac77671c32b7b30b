"""Why an engine or a sample is not DALI's: each a regular expression that the message of the product must match.

A phrase is what a user reads, as the end of "The data set …" or "The sample …".
"""

from __future__ import annotations

# What it reads.
NO_IMAGE = "opens no image file"
IN_MEMORY = "takes its samples decoded from memory"
UNKNOWN_OPENER = "by a function that is known"  # of the same sentence, where it does open one
TWO_IMAGES = "opens more than one image"
OPENED_TWICE = "opens its file twice"
UNOPENED = "could not be opened"
NO_FORMAT = "neither a JPEG"  # in the words of image_formats.py
CUT_OFF = "is cut off"  # in the words of file_check.py
TURNED = "EXIF orientation"  # in the words of dali_batch.py
CMYK = "4 components"  # in those of jpeg.py

# What it does with the image.
NOT_RGB = "is not made RGB"  # as L, RGBA or YCbCr, BGR as cv2 gives it, or in the file's own mode
PIXELS = "works on the pixels itself"  # reads or changes them before a transform, or instead of one
TWO_TRANSFORMS = "more than one transform"  # one after the other
TWICE = "calls its transform twice"
DIFFERENT = "different transforms"  # in the words of file_source.py: one sample has this, another has that
NEW_TRANSFORM = "makes its transform anew"
JOINT = "transforms image and target together"
AFTERWARDS = "changes the image after the transform"
NOT_FOUND = "image is not found in what it returns"
DECODES_ONLY = "would only decode"  # in the words of obstacles.py

# What else it does.
NOT_THE_SAME = "is not the same twice"  # the rest of the sample, for one index and one seed
KEEPS = "keeps the image"  # in a cache
CHANGES = "changes its own attributes"
WRITES = "writes files"
OWN_BATCHES = "has a __getitems__ of its own"  # in the words of layouts.py


def either(*reasons: str) -> str:
    """Whichever the product meets first."""
    return "|".join(reasons)
