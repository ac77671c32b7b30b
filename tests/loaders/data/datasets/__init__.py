"""Data sets as people write them by hand, each with what must become of it when it is given to `switchable`.

In: a folder that `write_images` of `folder.py` made. Out: `CASES`, every data set once. Begin with `case.py`, which
says what an entry holds, and `plain.py`, the class that everybody writes first; `reasons.py` has the reasons for which
a data set, or a sample, is not DALI's. The other modules have a theme each.

What decides between the three:

* A sample is DALI's if the user's own `__getitem__` opens one image, makes it RGB, hands it to one transform and puts
  the result, unchanged, somewhere into tuples, lists, dictionaries, named tuples and dataclasses. All else in the
  sample is computed by the user's own code and is equal, whatever it is. What `__getitem__` itself draws comes from
  the plan's seeds, and is the same on every engine.
* "offered": every sample is DALI's. "fallback": all but a tenth at most are. "grey": more are not, or the data set
  remembers or writes something while it gives samples. An attribute that only the first sample sets (a handle, a
  cached property) is no memory.
* All of this is for a loader without workers; `with_workers` says where one with workers differs.
* A bad file is no bad data set: it costs a fallback, since what happens then is for the user's code to say.
* Whatever the case, `torchvision` delivers what a plain DataLoader delivers, and nothing of a dry run is left behind:
  not in the data set, not in a cache, not on the disk.
"""

from __future__ import annotations

import importlib.util

from . import (
    archive_files,
    arrays,
    colours,
    databases,
    faulty_files,
    hugging_face,
    inheritance,
    no_images,
    openers,
    plain,
    randomness,
    several_images,
    side_effects,
    structures,
    tables,
    transform_places,
)
from .case import Case, as_written
from .comparison import equal
from .folder import write_images

CASES: tuple[Case, ...] = (
    *plain.CASES,
    *tables.CASES,
    *openers.CASES,
    *arrays.CASES,
    *structures.CASES,
    *transform_places.CASES,
    *archive_files.CASES,
    *databases.CASES,
    *hugging_face.CASES,
    *several_images.CASES,
    *faulty_files.CASES,
    *randomness.CASES,
    *side_effects.CASES,
    *colours.CASES,
    *inheritance.CASES,
    *no_images.CASES,
)

RUNNABLE = tuple(case for case in CASES if case.needs is None or importlib.util.find_spec(case.needs) is not None)
"""Those of which the package that they need is installed."""

__all__ = ["CASES", "RUNNABLE", "Case", "as_written", "equal", "write_images"]
