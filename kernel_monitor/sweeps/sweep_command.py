"""The entries of a sweep: `kernel_monitor.sweep(…)`, and what `kernel-monitor sweep` calls."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from ..own_files import expanded
from .presets import Choice, Grid, Row, preset
from .sweep_file import PAGE, RECORDINGS, begin

if TYPE_CHECKING:
    from .sweep_run import Prepare


IMAGES, FEW_IMAGES = 2048, 512  # of the demo set; few where the sweep is short or quick
ROW_S, CHANGE_S = 5.0, 2.0  # what a row's start and a change of engines usually take
STOPPED = "stopped after {done} passes, which are kept in {folder}: the same command goes on from there."


@dataclass(frozen=True)
class Swept:
    """A sweep that ended, or was stopped: its folder and what is in its `sweep.json`."""

    folder: Path
    content: dict[str, Any]
    price: float | None = None
    currency: str = ""

    @property
    def page(self) -> Path:
        """The page, one HTML file."""
        return self.folder / PAGE

    def cells(self) -> list[Any]:
        """Return the cells of the table, row by row (`sweeps.table_cells.Cell`)."""
        from .table_cells import cells

        return [cell for row in cells(self.content, self.price) for cell in row]

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        from .sweep_summary import summary

        return summary(self.content, self.price, self.currency)

    def __str__(self) -> str:
        from .sweep_summary import table

        return table(self.content, self.price, self.currency)

    def __repr__(self) -> str:
        return f"<sweep {self.content['grid']['preset']}: {len(self.content['passes'])} passes>"


def sweep(
    name: str = "own",
    *,
    data: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    loader: Any = None,
    step: Callable[[Any], object] | None = None,
    model: Any = None,
    optimizer: Any = None,
    engines: Sequence[str] | None = None,
    knobs: Sequence[Mapping[str, int]] | None = None,
    models: Sequence[str] | None = None,
    loads: Sequence[int] | None = None,
    batch: int = 0,
    workers: int = 0,
    seconds: float = 0.0,
    epochs: int = 0,
    passes: int = 0,
    images: int = 0,
    short: bool | None = None,
    full: bool = False,
    again: bool = False,
    price: Any = None,
    progress: bool = True,
) -> Swept:
    """Measure a grid and write its page: quickly, in two or three minutes, or in full.

    Called again with the same folder and grid, it goes on where it was.

    Args:
        name: `sagemaker-dali`, `resnet50-case-study`, `workers`, or `own` with a `loader`.
        data: a folder of images, one folder per class; without it a demo set in the user's cache folder.
        output: the folder of the results; by default `sweep-NAME-quick`, or `sweep-NAME` of a full one, in the working
            directory.
        loader: of `own`: the `switchable` loader.
        step: of `own`: called with each batch. Without it, supervised training of `model` with `optimizer`.
        engines: those to compare, the first being what the others are compared with. `dali` is the better of the two
            that can run, `dali-fused` the same with its decode fused.
        knobs: of `own`: a row for each of these settings, such as `{"workers": 4}`; by default one row as it is.
        models, loads, batch, workers: of the presets, instead of the preset's.
        seconds: of a window at least.
        epochs: whole epochs in a window instead.
        passes: how often each engine of a row is measured; twice by default, four times if it is short and full.
        images: of the demo set.
        short: small images and short windows, for machines without a GPU; None: in a quick sweep without one.
        full: more and longer windows, and all of the preset's loads; else it is quick and says how exact it is.
        again: measure what is done, too.
        price: of an hour of this machine, such as `2.50 €`.
        progress: whether to show how far it is, and the time left.

    Raises:
        MonitorError: an argument is none, the folder has another grid, or there are no images.
        KeyboardInterrupt: it was stopped; what is measured is kept, and the page is written.
    """
    from ..loaders import SwitchableLoader
    from ..runtime.settings import Settings

    settings = Settings().changed(price="" if price is None else price)
    if short is None:
        short = name != "own" and not full and not _has_gpu()
    choice = Choice(models, loads, engines, batch, workers, seconds, epochs, passes, short, quick=not full)
    prepare: Prepare
    kept: AbstractContextManager[None] = nullcontext()
    if name == "own":
        if not isinstance(loader, SwitchableLoader):
            raise MonitorError("A sweep of your own needs the loader: sweep(loader=switchable(…), step=…).")
        from .training import as_before, own_grid, own_training

        kept = as_before(loader)
        grid = own_grid(loader, choice, knobs)
        prepare = own_training(loader, step, model, optimizer)
    else:
        if loader is not None or knobs is not None:
            raise MonitorError(f"The sweep {name!r} makes its own loaders: leave loader= and knobs= out.")
        from ..os_process import usable_cores
        from .training import device, folder
        from .training import prepare as prepare_row

        grid = preset(name, choice, cores=usable_cores(), gpu=device().type == "cuda", images=0, data="")
        root = (
            _demo(images or (IMAGES if full and not short else FEW_IMAGES), progress=progress)
            if data is None
            else expanded(data)
        )
        grid = preset(
            name, choice, cores=usable_cores(), gpu=device().type == "cuda",
            images=len(folder(root)), data="demo" if data is None else root.name,
        )  # fmt: skip

        def prepare(row: Row) -> Any:
            return prepare_row(row, grid, root)

    target = expanded(output if output is not None else default_folder(name, short=short, full=full))
    with kept:
        return run(grid, prepare, target, again=again, settings=settings, progress=progress)


def default_folder(name: str, *, short: bool | None, full: bool) -> str:
    """Return where a sweep is kept that names no folder; quick ones and full ones do not get into each other's way."""
    return f"sweep-{name}{'' if full else '-quick'}{'-short' if full and short else ''}"


def _has_gpu() -> bool:
    from .training import device

    return device().type == "cuda"


def run(grid: Grid, prepare: Prepare, target: Path, *, again: bool, settings: Any, progress: bool) -> Swept:
    """Measure what is missing of a grid, and write the page in any case."""
    from .sweep_file import machine_facts
    from .sweep_run import Progress, SweepRun
    from .sweep_summary import write_page

    file = begin(target, grid, machine_facts(), again=again)
    swept = Swept(target, file.content, settings.price, settings.currency)
    planned = len(grid.rows) * grid.passes
    line = Progress(planned, len(file.passes), expected=_expected(grid), shown=progress)
    try:
        if len(file.passes) < planned:
            line.cell("starting")
            with _recorded(target / RECORDINGS):
                SweepRun(grid, file, prepare, line).rows()
    finally:
        line.end()
        write_page(target, file.content, settings.price, settings.currency)
    return swept


def _expected(grid: Grid) -> float | None:
    """Return the s that a pass is expected to take, before one is measured; None where whole epochs are."""
    if grid.epochs:
        return None
    starting = ROW_S / grid.passes
    return starting + sum((grid.seconds + CHANGE_S) * len(row.engines) for row in grid.rows) / max(1, len(grid.rows))


class _recorded:  # noqa: N801 - used as a context manager
    """The monitor runs and records into a folder; one that runs already is left as it is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = False
        self._before: Any = None

    def __enter__(self) -> None:
        from ..runtime import monitor

        if monitor.running:
            return
        self._before = monitor.settings
        monitor.start(record=str(self._folder))
        self._started = True

    def __exit__(self, *_: object) -> None:
        from ..runtime import monitor

        if self._started:
            monitor.stop()
            monitor.configure(record=self._before["record_to"] or "")
            if not self._before["record"]:
                monitor.configure(record=False)


def _demo(count: int, *, progress: bool) -> Path:
    """Make a demo set of so many images in the user's cache folder."""
    from ..demo import demo_data
    from ..stream.chart_documents import cache_folder

    return demo_data(cache_folder().parent / f"demo-{count}", images=count, progress=progress)


def compared(a: Path, b: Path) -> tuple[str, float]:
    """Return the ratios of two sweeps of one grid as a table, and their largest relative difference; NaN where none
    is known.

    Raises:
        MonitorError: one of them is no sweep, or they have no cell in common.
    """
    from .sweep_file import read
    from .table_cells import ratios

    first, second = (ratios(read(folder).content) for folder in (a, b))
    common = [key for key in first if key in second]
    if not common:
        raise MonitorError(f"{a} and {b} have no cell in common: they are of different grids.")
    width = max(len(f"{row}, {engine}") for row, engine in common)
    lines, worst = [], math.nan
    for row, engine in common:
        one, two = first[row, engine], second[row, engine]
        apart = abs(two / one - 1)
        worst = apart if math.isnan(worst) else max(worst, apart)
        lines.append(f"{f'{row}, {engine}':{width}}  {one:6.3f}  {two:6.3f}  {100 * apart:5.1f} %")
    return "\n".join([f"{'ratio of images/s to the first engine':{width}}  {'A':>6}  {'B':>6}  apart", *lines]), worst
