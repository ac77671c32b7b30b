"""A run of a training script with the monitor, in one process, with clicks from another thread.

The script is run as `__main__`, as by `python train.py`, after `monitor.start()`; it does not name the package.
"""

from __future__ import annotations

import json
import queue
import runpy
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import training

LIMIT_S = 120.0  # seconds in which an engine must be ready


class Clicker:
    """Clicks after certain steps of a training; the steps after a click wait until the engine is ready.

    Args:
        clicks: the engine to click on, by the number of the step after which to click, from 1.
        loader: the name of the loader; None if there is only one.
        kind: the kind of the steps that are counted.
    """

    def __init__(self, clicks: Mapping[int, str], loader: str | None = None, kind: str = "train") -> None:
        self.backends: list[str] = []  # the engine in use at each step
        self._clicks = dict(clicks)
        self._loader = loader
        self._kind = kind
        self._asked: queue.Queue[str] = queue.Queue()
        self._answered: queue.Queue[Exception | None] = queue.Queue()
        threading.Thread(target=self._click, daemon=True).start()

    def __call__(self, step: training.Step) -> None:
        """Wait for the engine of an earlier click, note the engine in use, and click if one is due after this step."""
        if step.kind != self._kind:
            return
        self._wait_until_ready()
        found = self._found()
        self.backends.append("" if found is None else found.backend)
        backend = self._clicks.get(len(self.backends))
        if backend is not None:
            self._asked.put(backend)
            error = self._answered.get(timeout=LIMIT_S)
            if error is not None:
                raise error

    def _click(self) -> None:
        from kernel_monitor import monitor

        while True:
            try:
                monitor.switch(self._asked.get(), loader=self._loader)
                self._answered.put(None)
            except Exception as error:  # noqa: BLE001 - raised where it was asked for
                self._answered.put(error)

    def _found(self) -> Any:
        from kernel_monitor.loaders import live

        return next((one for one in live() if self._loader in (None, one.name)), None)

    def _wait_until_ready(self) -> None:
        found = self._found()
        made = getattr(found, "loader", None)
        until = time.monotonic() + LIMIT_S
        while made is not None:
            preparing = made.switch_state.preparing
            if preparing is None or preparing is made.preparation.deferred:
                return
            if time.monotonic() > until:
                raise TimeoutError(f"{preparing.target} is not ready after {LIMIT_S:.0f} s")
            time.sleep(0.005)


def run(
    script: str, arguments: Sequence[str], clicks: Mapping[int, str], loader: str | None, kind: str
) -> dict[str, Any]:
    """Run a script with the monitor; return the engine in use at each step, the loaders' last states, the status."""
    from kernel_monitor import monitor
    from kernel_monitor.loaders import live

    monitor.start(record=False)
    clicker = Clicker(clicks, loader, kind)
    kept: dict[str, dict[str, Any]] = {}

    def note_loaders() -> None:
        for one in live():
            kept[one.id] = {
                "name": one.name,
                "kind": one.kind,
                "state": one.state(),
                "epochs": one.epochs(),
                "clicks": [click.outcome for click in one.clicks] or kept.get(one.id, {}).get("clicks", []),
                "images": one.meter.totals().images,
            }

    def on_step(step: training.Step) -> None:
        clicker(step)
        note_loaders()

    training.on_step = on_step
    held = _main(script, arguments)  # the script's globals keep its loaders alive
    note_loaders()
    del held
    status = monitor.status()
    monitor.stop()
    return {"backends": clicker.backends, "loaders": list(kept.values()), "status": status}


def _main(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    sys.argv = [script, *arguments]
    return runpy.run_path(script, run_name="__main__")


def main(out: str, script: str, arguments: Sequence[str], clicks: Mapping[int, str] | None, **options: Any) -> None:
    """Run a script, with the monitor unless `clicks` is None; write its steps and what `run` returns, as JSON."""
    seen: dict[str, Any] = {"backends": [], "loaders": [], "status": ""}
    if clicks is None:
        _main(script, arguments)
    else:
        seen = run(script, arguments, clicks, **options)
    Path(out).write_text(json.dumps({**seen, "steps": training.steps}, default=str), encoding="utf-8")
