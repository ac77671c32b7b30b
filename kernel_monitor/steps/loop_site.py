"""Where a loop over a DataLoader stands, and what people call the loader: its variable, or its role in a framework."""

from __future__ import annotations

import linecache
import re
import sysconfig
from types import FrameType
from typing import Any, NamedTuple

from . import loader_kinds

_FRAMES = 60  # of the stack among which that of the user's loop is looked for
_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})
_PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")  # those of the user, `pip install --user`, are elsewhere
_NAMES = re.compile(r"[A-Za-z_]\w*")
_LOADER_NAME = re.compile(r"(?i)loader|^dl$|_dl$|^dl_|batches|^train|^val|^test|^data$")


class Site(NamedTuple):
    """Where an iteration begins."""

    frame: FrameType | None  # the innermost that is of no library; None where all are
    role: str | None  # of the loader in the framework that iterates it
    is_trial: bool  # whether it is a framework's trial before the training


_ROLES = {
    "fit_loop.py": "train_dataloader",
    "training_epoch_loop.py": "train_dataloader",
    "evaluation_loop.py": "val_dataloader",
    "prediction_loop.py": "predict_dataloader",
    "_inner_training_loop": "train_dataloader",
    "_run_epoch": "train_dataloader",
    "evaluation_loop": "eval_dataloader",
    "_do_epoch_train": "dls.train",
    "_do_epoch_validate": "dls.valid",
    "_do_train": "train_loader",
    "validator.py": "val_loader",
}
"""Names of loaders by the function or the file of a framework's that iterates them.

Lightning's, Transformers', fastai's and Ultralytics' are here.
"""
_TRIALS = frozenset({"_run_sanity_check", "one_batch"})
"""Functions: Lightning's, over the first batches of the validation; fastai's, for a look at a batch."""


def loop_site(frame: FrameType | None) -> Site:
    """Return where an iteration begins that was asked for by this frame."""
    role, is_trial, own = None, False, None
    for _ in range(_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        if not code.co_filename.startswith((*_LIBRARIES, "<frozen")) and not _PACKAGES.search(code.co_filename):
            if code.co_name != "__iter__":  # of a class around the loader: the loop over it is meant
                return Site(frame, role, is_trial)
            own = own or frame
        role = role or _ROLES.get(code.co_name) or _ROLES.get(code.co_filename.rpartition("/")[2])
        is_trial = is_trial or code.co_name in _TRIALS
        frame = frame.f_back
    return Site(own, role, is_trial)


def loader_name(loader: Any, site: FrameType | None) -> str:
    """Return a name for people: the variable's where the loop's own line tells it, else the data set's class.

    The frame's local variables are not read: Python would keep them all alive until the function returns.
    """
    if site is not None:
        line = linecache.getline(site.f_code.co_filename, site.f_lineno, site.f_globals)
        names: list[str] = list(dict.fromkeys(_NAMES.findall(line)))
        for name in names:
            if site.f_globals.get(name) is loader:
                return name
        likely = [name for name in names if _LOADER_NAME.search(name) and name != "DataLoader"]
        if len(likely) == 1:
            return likely[0]
    return str(type((loader_kinds.of_fastai(loader) or loader).dataset).__name__)
