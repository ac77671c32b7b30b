"""`python -m kernel_monitor.warm [FOLDER]`: make the chart documents that sessions on this machine usually need.

They show the default charts with no, one or two loaders, without and with phases of steps, and with one loader that
works on a second machine like this one (a cluster on this machine); and every chart that this machine has, for reports.
"""

from __future__ import annotations

import gc
import queue
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import MonitorError
from .node_sources import Node
from .report.embedded import draw, report_schema
from .sample.sampler_client import SamplerClient
from .store import Schema, Store
from .store.charts import Kind, chart_states, default_charts
from .stream.chart_documents import Documents, cache_folder

_FIRST_S = 20.0  # how long to wait for the sampler
SETTLE_S = 1.0  # how long to wait for a second hello: GPUs are found a moment after the first
LOADERS: tuple[tuple[bool, ...], ...] = ((False,), (), (True,), (False, False), (True, False))
"""The usual sets of loaders: for each loader, whether its phases are measured; the most usual set first."""
KINDS: tuple[Kind, ...] = ("live", "report")


def main() -> None:
    gc.disable()  # collections would take a tenth of this short process's time
    warm(Path(sys.argv[1]) if len(sys.argv) > 1 else cache_folder())


def warm(folder: Path) -> int:
    """Make this machine's missing documents; returns their number. A MonitorError if its sampler does not start."""
    documents = Documents(folder)

    def wanted() -> Iterator[tuple[Schema, Kind]]:
        for number, hello in enumerate(_hellos()):
            if number == 0:
                documents.keep_hello(hello)
            for kind in KINDS:
                yield from ((schema, kind) for schema in _usual(hello, kind))

    return documents.warm_up(wanted(), draw)


def _usual(hello: dict[str, Any], kind: Kind) -> list[Schema]:
    """Return the schemas that a session on this machine usually has."""
    store = Store()
    store.set_host(hello)
    found = []
    node = Node("0", "0", tuple(hello["cpus"]))
    for loaders, nodes in (*((loaders, []) for loaders in LOADERS), (LOADERS[0], [node])):
        store.set_charts(default_charts([*(["phases"] if any(loaders) else []), *(["nodes"] if nodes else [])]))
        store.set_loaders([{"id": str(k), "name": str(k), "phased": phased} for k, phased in enumerate(loaders)])
        store.set_nodes(nodes)
        if kind == "live":
            found.append(store.page_schema)
        else:
            charts = [chart["id"] for chart in chart_states(store.schema) if chart["available"] or chart["default"]]
            found.append(report_schema(store.schema, charts))
    return found


def _hellos() -> Iterator[dict[str, Any]]:
    """Yield the sampler's first hello, and those within a second after it."""
    hellos: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    ignored = lambda *_: None  # noqa: E731
    client = SamplerClient(0.1, on_hello=hellos.put, on_frame=ignored, on_notice=ignored, on_exit=ignored)
    client.start()
    try:
        from . import views  # noqa: F401 - import Bokeh while the sampler starts

        try:
            yield hellos.get(timeout=_FIRST_S)
        except queue.Empty:
            raise MonitorError(f"The sampler did not start within {_FIRST_S:g} s.") from None
        until = time.monotonic() + SETTLE_S
        with suppress(queue.Empty):
            while True:
                yield hellos.get(timeout=max(0.0, until - time.monotonic()))
    finally:
        client.stop()


if __name__ == "__main__":
    main()
