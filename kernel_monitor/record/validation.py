"""Reads JSON from a file of unknown origin: bounded, with finite numbers, in UTF-8, and of the shape that it must have.

A shape is a type or tuple of types; a predicate; `[shape]`, a list of such values; `{...: shape}`, an object of such
values; or `{key: shape}`, an object, where a key that ends in `?` may be missing and is left out if its value does not
fit.
"""

from __future__ import annotations

import json
import math
from typing import Any

from .format import (
    CPUS,
    GPUS,
    INTEGER,
    INTERVAL_S,
    NAME,
    ORIGIN_S,
    SERIES,
    SESSION_S,
    TEXT_BYTES,
    TEXT_DEPTH,
    TEXT_VALUES,
)

_Shape = Any


class Budget:
    """The characters and values that several texts may have together; `spent` once a text did not fit."""

    def __init__(self) -> None:
        self._bytes, self._values = TEXT_BYTES, TEXT_VALUES
        self.spent = False

    def take(self, text: str) -> None:
        """Count a text. Raises ValueError if it is too much."""
        self._bytes -= len(text)
        # A text has at most one value more than commas and opening brackets.
        self._values -= text.count(",") + text.count("[") + text.count("{") + 1
        if self._bytes < 0 or self._values < 0:
            self.spent = True
            raise ValueError("it holds more than any recording")


def parse(text: object, budget: Budget | None = None) -> Any:
    """Return the value of a JSON text: numbers that are not finite are None, lone surrogates are replaced.

    A ValueError if it is no JSON, or larger or deeper than the recorder writes. `budget` is shared with other texts.
    """
    if not isinstance(text, str):
        raise ValueError(f"{type(text).__name__} in place of text")
    (budget or Budget()).take(text)
    try:
        value = json.loads(text, parse_constant=lambda _name: None)
    except RecursionError as error:
        raise ValueError("its lists are too deep") from error
    return _tidy(value, TEXT_DEPTH)


def _tidy(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        # Python spells odd file names with lone surrogates, which no message or page can hold.
        return value.encode("utf-8", errors="surrogatepass").decode("utf-8", errors="replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not -INTEGER <= value <= INTEGER:
        raise ValueError("it has a number of too many digits")
    if not isinstance(value, list | dict):
        return value
    if depth == 0:
        raise ValueError("its lists are too deep")
    if isinstance(value, list):
        return [_tidy(entry, depth - 1) for entry in value]
    return {_tidy(key, 0): _tidy(entry, depth - 1) for key, entry in value.items()}


class ShapeError(ValueError):
    """The error for a value that does not have its shape; the message names the place."""


def fit(value: Any, shape: _Shape, place: str = "") -> Any:
    """Return the value, without optional parts that do not fit; a Misfit if it has not this shape."""
    if isinstance(shape, dict | list) and not isinstance(value, type(shape)):
        raise ShapeError(f"{place or 'it'} is not {'an object' if isinstance(shape, dict) else 'a list'}")
    if isinstance(shape, list):
        return [fit(entry, shape[0], f"{place}[{k}]") for k, entry in enumerate(value)]
    if isinstance(shape, dict):
        if ... in shape:
            return {key: fit(entry, shape[...], f"{place}.{key}") for key, entry in value.items()}
        found = dict(value)
        for name, inner in shape.items():
            key = name.removesuffix("?")
            if key not in value and key == name:
                raise ShapeError(f"{place or 'it'} lacks {key}")
            try:
                if key in value:
                    found[key] = fit(value[key], inner, f"{place}.{key}".lstrip("."))
            except ShapeError:
                if key == name:
                    raise
                del found[key]
        return found
    if isinstance(shape, type | tuple):
        kinds = shape if isinstance(shape, tuple) else (shape,)
        # To Python a bool is an int; to readers of the file it is not.
        fits = bool in kinds if isinstance(value, bool) else isinstance(value, kinds)
    else:
        fits = shape(value)
    if not fits:
        raise ShapeError(f"{place or 'it'} is {value!r:.40}")
    return value


def _moment(value: Any) -> bool:  # session time, s
    return isinstance(value, int | float) and abs(value) <= SESSION_S


def _name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= NAME


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _maybe_count(value: Any) -> bool:
    return value is None or _count(value)


def _cpus(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= CPUS and all(_count(entry) for entry in value)


def _amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


NUMBER = (int, float)
_MAYBE_NUMBER = (int, float, type(None))
_MAYBE_TEXT = (str, type(None))
_TEXTS = {...: str}
_COUNTS = {...: _maybe_count}

META: dict[str, _Shape] = {
    "session": _name,
    "origin": lambda value: isinstance(value, int | float) and 0 <= value <= ORIGIN_S,
    "writer": {"pid": _count, "start?": _MAYBE_NUMBER, "boot?": str, "namespace?": str},
    "ended": {"reason": str, "time": _moment, "goodbye": bool},
    "facts": {
        "versions?": _TEXTS,
        "price?": _MAYBE_NUMBER,
        "node_price?": _MAYBE_NUMBER,
        "currency?": _MAYBE_TEXT,
        "world_size?": _count,
        "rank?": _count,
        "node_names?": bool,
    },
    "dropped": {"until": _moment, "rows": _count},
    "loaders": list,
    "nodes": list,
    "ranks": list,
    "epochs": dict,
    "cell_running": bool,
    "told": NUMBER,
    "copied": NUMBER,
}
"""The facts that are read; of `loaders`, `nodes`, `ranks` and `epochs` each entry has a shape of its own."""

COUNTS: dict[str, _Shape] = {
    "epoch": _count,
    "samples": _count,
    "batches?": _maybe_count,
    "planned?": _maybe_count,
    "finished?": bool,
    **{f"{key}?": _maybe_count for key in ("lost", "doubled", "skipped", "replaced")},
    "decoded?": _COUNTS,
}
_CALIBRATION = {"state": str, "files": _count, "seconds": _MAYBE_NUMBER, "error": _MAYBE_NUMBER, "reason": _MAYBE_TEXT}
STATE: dict[str, _Shape] = {
    "id": _name,
    "name": str,
    "backend?": str,
    "status?": str,
    "wanted?": _MAYBE_TEXT,
    "backends?": [{"name": str, "available?": bool, "reason?": _MAYBE_TEXT, "confirm?": _MAYBE_TEXT}],
    "knobs?": _COUNTS,
    "calibration?": {...: _CALIBRATION},
    "skips?": [{"index": int, "path": str, "reason": str}],
    "ended?": bool,
    "batch?": _count,
    **{f"{key.removesuffix('?')}?": shape for key, shape in COUNTS.items()},
}
"""A loader's state (`docs/messages.md`, *LoaderState*)."""

NODE: dict[str, _Shape] = {"id": _name, "name": str, "alive?": bool, "reason?": _MAYBE_TEXT, "gpus?": [str]}
"""Another machine (`docs/messages.md`, *Schema*)."""

RANK: dict[str, _Shape] = {
    "id": _name,
    "job": _count,
    "number": _count,
    "world?": int,
    "host?": str,
    "alive?": bool,
    "reason?": _MAYBE_TEXT,
    "node?": str,
    "gpu?": _maybe_count,
    "clock?": _MAYBE_NUMBER,
}
"""A rank (`docs/messages.md`, *Schema*)."""

_GAIN = {"action": str, "low?": _MAYBE_NUMBER, "high?": _MAYBE_NUMBER, "measured?": _MAYBE_NUMBER, "basis?": str}
_RUN = {
    "backend": str,
    "label?": str,
    "problem?": _MAYBE_TEXT,
    "steps?": _maybe_count,
    "samples?": _maybe_count,
    **{f"{key}?": _MAYBE_NUMBER for key in ("rate", "rate_low", "rate_high", "step", "wait", "seconds", "of_ceiling")},
}
_DIAGNOSIS = {
    "kind?": str,
    "line?": _MAYBE_TEXT,
    "undo?": _MAYBE_TEXT,
    "runs": [_RUN],
    "began?": _moment,
    "measured?": [_GAIN],
    "predicted?": [_GAIN],
    "cannot?": [str],
}
_OPERATOR = {"name": str, "share": NUMBER, "self_ms": NUMBER, "count": _count}
_KERNEL = {"name": str, "share": NUMBER, "ms": NUMBER, "launches": _count}
_PROFILE = {"cpu": [_OPERATOR], "gpu": [_KERNEL], "began?": _moment, "wall_ms?": NUMBER, "trace?": _MAYBE_TEXT}
_EVENT: dict[str, _Shape] = {
    "kind": _name,
    "time": _moment,
    "first?": _moment,
    "asked?": _moment,
    "loader?": _MAYBE_TEXT,
}
"""The shape of every event."""
EVENTS: dict[str, dict[str, _Shape]] = {
    "switch": {"loader": _name, "source": str, "target": str, "epoch?": _count, "batch?": _count},
    "switch-asked": {"loader": _name, "target": str},
    "knobs": {"loader": _name, **{f"{key}?": _maybe_count for key in ("workers", "prefetch", "threads")}},
    "mark": {"label": str},
    "job-switch": {"label": str},
    "job-epoch": {"message": str},
    "prediction": {"loader": _name, "target": str, "gains": [_GAIN]},
    "diagnosis": {"result?": _DIAGNOSIS},
    "profile": {"result?": _PROFILE},
    "slow-rank": {"rank": _name, "cause": str, "message": str},
    "step-period": {"job": _count, "steps": _count, "message": str},
    "sample-times": {
        "loader": _name,
        **dict.fromkeys(("samples", "slow", "steps", "held"), _count),
        **dict.fromkeys(("median", "times", "lost", "cause_share", "share"), NUMBER),
        "names": [str],
        "files": bool,
        "cause": _MAYBE_TEXT,
        "transform": _MAYBE_TEXT,
    },
    "cell": {"label": str, "began": _moment, "ended": _moment},
}
"""The further shape of the events of a kind."""

_HOST: dict[str, _Shape] = {
    "cpu_model?": _MAYBE_TEXT,
    "platform?": _MAYBE_TEXT,
    "logical_cpus?": _count,
    "memory_total?": _amount,
    "limits?": {"cpus?": _cpus, "cpu_quota?": _amount, "memory?": _amount, "source?": _MAYBE_TEXT},
    "topology?": {"sockets?": [_cpus], "numa?": [_cpus]},
    "reasons?": _TEXTS,
}
_GPU = {
    "index": _count,
    "name": str,
    "memory_total": _MAYBE_NUMBER,
    "reasons?": _TEXTS,
    "mig?": [{"index": _count, "name": str, "memory_total": _MAYBE_NUMBER}],
    "throttle?": [str],
}
_HELLO = {
    "interval": lambda value: isinstance(value, int | float) and INTERVAL_S[0] <= value <= INTERVAL_S[1],
    "cpus": _cpus,
    "gpus": [_GPU],
    "gpu_reason": _MAYBE_TEXT,
    "host": _HOST,
}


def hello(value: Any) -> dict[str, Any]:
    """Return a sampler's hello, checked. Raises Misfit."""
    found: dict[str, Any] = fit(value, _HELLO)
    if len(found["gpus"]) > GPUS:
        raise ShapeError(f"it has {len(found['gpus']):,} gpus")
    found["cpus"] = list(dict.fromkeys(found["cpus"]))
    return found


def layout(value: Any) -> list[tuple[str, str]]:
    """Return the series of a layout, names and units, checked. Raises Misfit."""
    fits = lambda pair: isinstance(pair, list) and len(pair) == 2 and _name(pair[0]) and isinstance(pair[1], str)  # noqa: E731
    pairs = fit(value, [fits])
    if len(pairs) > SERIES:
        raise ShapeError(f"it has {len(pairs):,} series")
    if len({name for name, _ in pairs}) != len(pairs):
        raise ShapeError("a series is in it twice")
    return [(name, unit) for name, unit in pairs]


def event(value: Any) -> dict[str, Any]:
    """Return an event, checked. Raises Misfit."""
    found = fit(value, _EVENT)
    return dict(fit(found, EVENTS.get(found["kind"], {})))
