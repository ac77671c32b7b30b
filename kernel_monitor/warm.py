"""`python -m kernel_monitor.warm [FOLDER]`: make the chart documents that sessions on this machine usually need.

They show the default charts with no, one or two loaders, without and with phases of steps; and every chart that this
machine has, for reports.
"""

from __future__ import annotations

import gc
import queue
import sys
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import MonitorError
from .report.embedded import draw, report_schema
from .sample.sampler_client import SamplerClient
from .store import Store
from .store.charts import DEFAULT_CHARTS, PHASED_CHARTS, available
from .stream.chart_documents import Documents, cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .store import Schema
    from .store.charts import Kind

FIRST_S = 20.0  # how long to wait for the sampler
SETTLE_S = 1.0  # how long to wait for a second hello: GPUs are found a moment after the first
LOADERS: tuple[tuple[bool, ...], ...] = ((False,), (), (True,), (False, False), (True, False))
"""For each loader, whether its phases are measured; the most usual case first, as a page may wait for it."""
KINDS: tuple[Kind, ...] = ("live", "report")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0."""
    given = sys.argv[1:] if arguments is None else arguments
    gc.disable()  # collections would take a tenth of this short process's time
    warm(Path(given[0]) if given else cache_folder())
    return 0


def warm(folder: Path) -> int:
    """Make this machine's missing documents; returns their number.

    Raises:
        MonitorError: the machine's sampler does not start.
        OSError: the folder cannot be written to.
    """
    documents = Documents(folder)

    def wanted() -> Iterator[tuple[Schema, Kind]]:
        hellos = _hellos()
        first = next(hellos)
        documents.keep_hello(first)
        for hello in chain([first], hellos):
            for kind in KINDS:
                yield from ((schema, kind) for schema in _usual(hello, kind))

    return documents.warm_up(wanted(), draw)


def _usual(hello: dict[str, Any], kind: Kind) -> list[Schema]:
    """The schemas that a session on this machine usually has."""
    store = Store()
    store.set_host(hello)
    found = []
    for loaders in LOADERS:
        store.set_charts(PHASED_CHARTS if any(loaders) else DEFAULT_CHARTS)
        store.set_loaders([{"id": str(k), "name": str(k), "phased": phased} for k, phased in enumerate(loaders)])
        if kind == "live":
            found.append(store.page_schema)
        else:
            charts = [chart["id"] for chart in available(store.schema) if chart["available"] or chart["default"]]
            found.append(report_schema(store.schema, charts))
    return found


def _hellos() -> Iterator[dict[str, Any]]:
    """The sampler's first hello, and those within a second after it."""
    heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    client = SamplerClient(
        0.1,
        on_hello=heard.put,
        on_frame=lambda *_: None,
        on_notice=lambda _: None,
        on_exit=lambda _: None,
    )
    client.start()
    try:
        from . import views  # noqa: F401 - import Bokeh while the sampler starts

        try:
            yield heard.get(timeout=FIRST_S)
        except queue.Empty:
            raise MonitorError(f"The sampler did not start within {FIRST_S:g} s.") from None
        until = time.monotonic() + SETTLE_S
        while True:
            try:
                yield heard.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
    finally:
        client.stop()


if __name__ == "__main__":
    sys.exit(main())
