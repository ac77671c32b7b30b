"""The shapes of the JSON values in a session's file, and the check of a value against its shape.

A shape is a type or tuple of types; a predicate; `[shape]`, a list of such values; or `{key: shape}`, an object, where
a key that ends in `?` may be missing and is left out if its value does not fit.
"""

from __future__ import annotations

import math
from typing import Any

from .file_limits import CPUS, GPUS, INTERVAL_S, NAME, ORIGIN_S, SERIES, SESSION_S

Shape = Any


class Misfit(ValueError):
    """A value does not have its shape; the message names the place."""


def fitted(value: Any, shape: Shape, place: str = "") -> Any:
    """The value, without optional parts that do not fit.

    Raises:
        Misfit: it has not this shape.
    """
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise Misfit(f"{place or 'it'} is no object")
        return _object(value, shape, place)
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise Misfit(f"{place or 'it'} is no list")
        return [fitted(entry, shape[0], f"{place}[{k}]") for k, entry in enumerate(value)]
    fits = isinstance(value, shape) if isinstance(shape, type | tuple) else shape(value)
    # To Python a bool is an int; to readers of the file it is not.
    if not fits or (isinstance(value, bool) and isinstance(shape, type | tuple) and not _of(bool, shape)):
        raise Misfit(f"{place or 'it'} is {value!r:.40}")
    return value


def _object(value: dict[str, Any], shape: dict[str, Shape], place: str) -> dict[str, Any]:
    found = dict(value)
    for name, inner in shape.items():
        key = name.removesuffix("?")
        if key not in value:
            if key == name:
                raise Misfit(f"{place or 'it'} has no {key}")
            continue
        try:
            found[key] = fitted(value[key], inner, f"{place}.{key}".lstrip("."))
        except Misfit:
            if key == name:
                raise
            del found[key]
    return found


def _of(kind: type, shape: type | tuple[Any, ...]) -> bool:
    return kind in shape if isinstance(shape, tuple) else shape is kind


def moment(value: Any) -> bool:
    """Whether this is a session time, s."""
    return isinstance(value, int | float) and abs(value) <= SESSION_S


def origin(value: Any) -> bool:
    """Whether this is a Unix time that a session may begin at."""
    return isinstance(value, int | float) and 0 <= value <= ORIGIN_S


def _name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= NAME


def _interval(value: Any) -> bool:
    return isinstance(value, int | float) and INTERVAL_S[0] <= value <= INTERVAL_S[1]


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _maybe_count(value: Any) -> bool:
    return value is None or _count(value)


def _counts(value: Any) -> bool:
    return isinstance(value, dict) and all(_maybe_count(entry) for entry in value.values())


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(entry, str) for entry in value.values())


def _cpus(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= CPUS and all(_count(entry) for entry in value)


def _amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


NUMBER = (int, float)
MAYBE_NUMBER = (int, float, type(None))
MAYBE_TEXT = (str, type(None))

META: dict[str, Shape] = {
    "session": _name,
    "origin": origin,
    "writer": {"pid": _count, "start?": MAYBE_NUMBER, "boot?": str, "namespace?": str},
    "ended": {"reason": str, "time": moment, "goodbye": bool},
    "facts": {
        "versions?": _texts,
        "price?": MAYBE_NUMBER,
        "currency?": MAYBE_TEXT,
        "world_size?": _count,
        "rank?": _count,
    },
    "dropped": {"until": moment, "rows": _count},
    "loaders": list,
    "epochs": dict,
    "told": NUMBER,
    "copied": NUMBER,
}
"""The facts that are read; of `loaders` and `epochs` each entry has a shape of its own."""

COUNTS: dict[str, Shape] = {
    "epoch": _count,
    "samples": _count,
    "batches?": _maybe_count,
    "planned?": _maybe_count,
    "finished?": bool,
    **{f"{key}?": _maybe_count for key in ("lost", "doubled", "skipped", "replaced")},
    "decoded?": _counts,
}
"""The counts of an epoch."""
_CALIBRATION = {
    "state": str,
    "files": _count,
    "seconds": MAYBE_NUMBER,
    "error": MAYBE_NUMBER,
    "reason": MAYBE_TEXT,
}


def _calibrations(value: Any) -> bool:
    try:
        return isinstance(value, dict) and all(fitted(one, _CALIBRATION) for one in value.values())
    except Misfit:
        return False


_SKIP = {"index": int, "path": str, "reason": str}
STATE: dict[str, Shape] = {
    "id": _name,
    "name": str,
    "backend?": str,
    "status?": str,
    "wanted?": MAYBE_TEXT,
    "backends?": [{"name": str, "available?": bool, "reason?": MAYBE_TEXT, "confirm?": MAYBE_TEXT}],
    "knobs?": _counts,
    "calibration?": _calibrations,
    "skips?": [_SKIP],
    "ended?": bool,
    "batch?": _count,
    **{(key if key.endswith("?") else f"{key}?"): shape for key, shape in COUNTS.items()},
}
"""A loader's state (`docs/messages.md`, *LoaderState*)."""

_GAIN = {"action": str, "low?": MAYBE_NUMBER, "high?": MAYBE_NUMBER, "measured?": MAYBE_NUMBER, "basis?": str}
_RUN = {
    "backend": str,
    "problem?": MAYBE_TEXT,
    "steps?": _maybe_count,
    "samples?": _maybe_count,
    **{f"{key}?": MAYBE_NUMBER for key in ("rate", "rate_low", "rate_high", "step", "wait", "seconds", "of_ceiling")},
}
_DIAGNOSIS = {
    "runs": [_RUN],
    "began?": moment,
    "measured?": [_GAIN],
    "predicted?": [_GAIN],
    "cannot?": [str],
}
_OPERATOR = {"name": str, "share": NUMBER, "self_ms": NUMBER, "count": _count}
_KERNEL = {"name": str, "share": NUMBER, "ms": NUMBER, "launches": _count}
_PROFILE = {"cpu": [_OPERATOR], "gpu": [_KERNEL], "began?": moment, "wall_ms?": NUMBER, "trace?": MAYBE_TEXT}
EVENT: dict[str, Shape] = {"kind": _name, "time": moment, "first?": moment, "asked?": moment, "loader?": MAYBE_TEXT}
"""The shape of every event."""
EVENTS: dict[str, dict[str, Shape]] = {
    "switch": {"loader": _name, "source": str, "target": str, "epoch?": _count, "batch?": _count},
    "switch-asked": {"loader": _name, "target": str},
    "knobs": {"loader": _name, **{f"{key}?": _maybe_count for key in ("workers", "prefetch", "threads")}},
    "mark": {"label": str},
    "prediction": {"loader": _name, "target": str, "gains": [_GAIN]},
    "diagnosis": {"result?": _DIAGNOSIS},
    "profile": {"result?": _PROFILE},
    "cell": {"label": str, "began": moment, "ended": moment},
}
"""The further shape of the events of a kind."""

LAYOUT: Shape = [lambda pair: isinstance(pair, list) and len(pair) == 2 and _name(pair[0]) and isinstance(pair[1], str)]
"""The series of a layout: names and units."""

_LIMITS = {"cpus?": _cpus, "cpu_quota?": _amount, "memory?": _amount, "source?": MAYBE_TEXT}
_TOPOLOGY = {"sockets?": [_cpus], "numa?": [_cpus]}
_HOST: dict[str, Shape] = {
    "cpu_model?": MAYBE_TEXT,
    "platform?": MAYBE_TEXT,
    "logical_cpus?": _count,
    "memory_total?": _amount,
    "limits?": _LIMITS,
    "topology?": _TOPOLOGY,
    "reasons?": _texts,
}
_GPU = {
    "index": _count,
    "name": str,
    "memory_total": MAYBE_NUMBER,
    "reasons?": _texts,
    "mig?": [{"index": _count, "name": str, "memory_total": MAYBE_NUMBER}],
    "throttle?": [str],
}


def hello(value: Any) -> dict[str, Any]:
    """A sampler's hello, checked.

    Raises:
        Misfit: it has not this shape.
    """
    shape = {"interval": _interval, "cpus": _cpus, "gpus": [_GPU], "gpu_reason": MAYBE_TEXT, "host": _HOST}
    found: dict[str, Any] = fitted(value, shape)
    for key, most in (("cpus", CPUS), ("gpus", GPUS)):
        if len(found[key]) > most:
            raise Misfit(f"it has {len(found[key]):,} {key}")
    found["cpus"] = list(dict.fromkeys(found["cpus"]))
    return found


def layout(value: Any) -> list[tuple[str, str]]:
    """The series of a layout, checked.

    Raises:
        Misfit: it has not this shape, or a name twice.
    """
    pairs = fitted(value, LAYOUT)
    if len(pairs) > SERIES:
        raise Misfit(f"it has {len(pairs):,} series")
    if len({name for name, _ in pairs}) != len(pairs):
        raise Misfit("a series is in it twice")
    return [(name, unit) for name, unit in pairs]


def event(value: Any) -> dict[str, Any]:
    """An event, checked.

    Raises:
        Misfit: it has not the shape of its kind.
    """
    found: dict[str, Any] = fitted(value, EVENT)
    return _object(found, EVENTS.get(found["kind"], {}), "")
