"""The sweep of a loader and a training that a person has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import MonitorError
from ..loaders import SwitchableLoader
from ..runtime import monitor
from .presets import FUSED, Choice, Grid, Row
from .training import Training, supervised

KNOBS = ("workers", "prefetch", "threads")


def own_grid(loader: SwitchableLoader, choice: Choice, knobs: Sequence[Mapping[str, int]] | None) -> Grid:
    """A row for each setting of the knobs; the engines are those that can run and ask no question, if none are named.

    Raises:
        MonitorError: a knob is none.
    """
    found = loader.backends
    able = [name for name, one in found.items() if one.available and one.confirm is None]
    dali = next((name for name in ("dali-gpu", "dali-cpu") if name in able), "dali-cpu")
    words = {"dali": dali, "dali-fused": f"{dali} {FUSED}", "native": "torchvision"}
    engines = tuple(dict.fromkeys(words.get(one, one) for one in choice.engines or able))
    rows = []
    for setting in knobs or ({},):
        if unknown := sorted(set(setting) - set(KNOBS)):
            raise MonitorError(f"There is no knob {unknown[0]!r}. There are: {', '.join(KNOBS)}.")
        words_of = ", ".join(f"{name} {setting[name]}" for name in KNOBS if name in setting)
        rows.append(Row(words_of or loader.name, engines, knobs=dict(setting)))
    passes, seconds = choice.times()
    return Grid(
        "own",
        tuple(rows),
        passes=passes,
        seconds=seconds,
        epochs=choice.epochs,
        short=choice.short,
        quick=choice.quick,
        images=len(loader.dataset),
        data=loader.name,
    )


def own_training(
    loader: SwitchableLoader, step: Callable[[Any], object] | None, model: Any, optimizer: Any
) -> Callable[[Row], Training]:
    """Return what prepares a row: its knobs are set; the loader goes on where it was.

    Raises:
        MonitorError: there is neither a step nor a model with its optimizer.
    """
    if step is None and (model is None or optimizer is None):
        raise MonitorError("A sweep of your own needs the step of your loop, step=…, or model= and optimizer=.")
    where = None if model is None else next(model.parameters()).device

    def prepare(row: Row) -> Training:
        if row.knobs:
            loader.set(**row.knobs)
        watched = None if model is None else monitor.watch(model, optimizer)
        return Training(loader, step or supervised(model, optimizer, where), watched, keep=True)

    return prepare


@contextmanager
def as_before(loader: SwitchableLoader) -> Iterator[None]:
    """Give a loader back its engine and its knobs afterwards."""
    engine, knobs = loader.backend, loader.knobs
    fused = loader.fused_decode
    try:
        yield
    finally:
        if loader.fused_decode != fused:
            loader.fused_decode = fused
        now = loader.knobs._asdict()
        changed = {name: value for name, value in knobs._asdict().items() if value is not None and now[name] != value}
        if changed:
            loader.set(**changed)
        loader.switch(engine)
