"""The place of a loop over a DataLoader in the user's code, and a name for the loader: a variable's, or a role's."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
from types import FrameType
from typing import Any, NamedTuple

from . import loader_kinds

_FRAMES = 60  # innermost frames of the stack that are searched for the user's loop
_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})
_PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")  # `pip install --user` puts packages outside of `_LIBRARIES`
_NAMES = re.compile(r"[A-Za-z_]\w*")
_TEXTS = re.compile(r"""(["']).*?(?<!\\)\1""")  # `desc="train"` names no loader
_LOOP = re.compile(r"\bfor\b.*?\bin\b(?P<over>[^:]*)")  # `for data, target in loader: train(data)`
_LOADER_NAME = re.compile(r"(?i)loader|^dl$|_dl$|^dl_|batches|^train|^val|^test|^data$")


class Site(NamedTuple):
    """The place at which an iteration begins."""

    frame: FrameType | None  # the innermost frame outside of libraries; None if there is none
    role: str | None  # of the loader, in the framework that iterates it; None if none is known
    is_trial: bool  # whether a framework only tries some batches, before the training


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
"""Names of loaders, by the function or the file that iterates them in Lightning, Transformers, fastai, Ultralytics."""
_TRIALS = frozenset({"_run_sanity_check", "one_batch"})
"""Functions that only try some batches: the sanity check of Lightning, `one_batch` of fastai."""


def loop_site(frame: FrameType | None) -> Site:
    """Return the place at which an iteration begins; `frame` is the one that calls `iter`."""
    role, is_trial, own = None, False, None
    for _ in range(_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        if not code.co_filename.startswith((*_LIBRARIES, "<frozen")) and not _PACKAGES.search(code.co_filename):
            if code.co_name != "__iter__":  # else a class around the loader: the loop over that is meant
                return Site(frame, role, is_trial)
            own = own or frame
        role = role or _ROLES.get(code.co_name) or _ROLES.get(code.co_filename.rpartition("/")[2])
        is_trial = is_trial or code.co_name in _TRIALS
        frame = frame.f_back
    return Site(own, role, is_trial)


def loader_name(loader: Any, site: FrameType | None) -> str:
    """Return a name for people: a global variable's, the variable's in the loop's own line, or the data set's class.

    A global variable of the script or notebook is preferred, as `def epoch(loader)` has one name for all loaders. The
    frame's local variables are not read: Python would keep them all alive until the function returns.
    """
    if site is not None:
        line = linecache.getline(site.f_code.co_filename, site.f_lineno, site.f_globals)
        line = _TEXTS.sub("", line)
        loop = _LOOP.search(line)
        names: list[str] = list(dict.fromkeys(_NAMES.findall(line if loop is None else loop["over"])))
        for name in names:
            if site.f_globals.get(name) is loader:
                return name
        for variables in (site.f_globals, getattr(sys.modules.get("__main__"), "__dict__", {})):
            of_globals: list[str] = [
                name for name, value in list(variables.items()) if value is loader and name[0] != "_"
            ]
            if of_globals:
                return of_globals[0]
        likely = [name for name in names if _LOADER_NAME.search(name) and name != "DataLoader"]
        if len(likely) == 1:
            return likely[0]
    return str(type((loader_kinds.of_fastai(loader) or loader).dataset).__name__)
