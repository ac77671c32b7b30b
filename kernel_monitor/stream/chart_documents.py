"""Cache of chart documents: made once per shape of machine and kept on disk, so that pages wait for Bokeh only once.

A document is made in a separate process, because Bokeh would hold the GIL of the process that trains. That process has
normal priority, because a page waits for it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import subprocess
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from .._version import __version__
from ..cache import create_folder, prune, read_checked, user_cache, write_checked
from ..errors import MonitorError
from ..store import Schema
from ..store.charts import Kind, document_shape, fill_document
from .render_process import command, environment, run_module

KEPT = 64  # documents kept on disk
HELD = 8  # documents kept in memory
POLL_S = 0.02
_WARMING_S = 10.0  # how long to wait for the process that makes documents in advance: on two busy cores it takes 6 s

Make = Callable[[Schema, Kind], dict[str, Any]]  # makes a document: `views.document`

log = logging.getLogger(__name__)


class Documents:
    """The documents of one process, kept in a folder (by default that of the environment or user). Thread-safe."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder() if folder is None else folder
        self._lock = threading.Lock()
        self._held: OrderedDict[str, Future[bytes]] = OrderedDict()
        self._warming: subprocess.Popen[bytes] | None = None
        here = _digest(platform.node(), os.cpu_count(), *_versions())
        self._warm_marker = self.folder / f"warm-{here}"  # exists once this machine's documents were made
        self._stored_hello = self.folder / f"machine-{here}.json"

    def get(self, schema: Schema, kind: Kind = "live") -> bytes:
        """Return the document of a schema, as JSON; makes it if it is not cached, MonitorError if that fails."""
        wanted = document_shape(schema)
        key = key_of(wanted, kind)
        with self._lock:
            known = key in self._held
            held = self._held.setdefault(key, Future())
            if len(self._held) > HELD:
                self._held.popitem(last=False)
        if not known:
            try:
                held.set_result(self._found(key) or self._made(wanted, kind, key))
            except BaseException as error:  # noqa: BLE001 - raised below and in every waiting thread
                with self._lock:
                    self._held.pop(key, None)  # the next request tries again
                held.set_exception(error)
        return fill_document(held.result(), schema)

    def warm(self) -> None:
        """Make the usual documents of this machine in a background process, unless they are cached."""
        if self._warm_marker.exists():
            return
        try:
            create_folder(self.folder)
            process = subprocess.Popen(
                command("kernel_monitor.warm", str(self.folder)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
                env=environment(),
            )
        except OSError as error:
            log.debug("no charts are made in advance: %s", error)  # they are made on request
            return
        self._warming = process
        threading.Thread(target=process.wait, name="kernel-monitor-warm", daemon=True).start()

    def hello(self) -> dict[str, Any] | None:
        """Return the sampler's hello from when documents were made on this machine, or None."""
        stored = read_checked(self._stored_hello)
        return None if stored is None else dict(json.loads(stored))

    def keep_hello(self, hello: Mapping[str, Any]) -> None:
        """Store the hello of this machine's sampler; OSError if the folder cannot be written to."""
        _write(self._stored_hello, json.dumps(hello).encode())

    def get_or_make(self, schema: Schema, kind: Kind, make: Make) -> bytes:
        """Return the document as `get` does; without a cached one `make` makes it here: only where nothing trains."""
        wanted = document_shape(schema)
        key = key_of(wanted, kind)
        document = read_checked(self.folder / key)
        if document is None:
            document = json.dumps(make(wanted, kind), separators=(",", ":")).encode()
            self._keep(key, document)
        return fill_document(document, schema)

    def warm_up(self, schemas: Iterable[tuple[Schema, Kind]], make: Make) -> int:
        """Make the documents that are not cached, in this process; returns how many."""
        create_folder(self.folder)
        made = 0
        for schema, kind in schemas:
            made += not (self.folder / key_of(document_shape(schema), kind)).exists()
            self.get_or_make(schema, kind, make)
        self._warm_marker.touch()
        return made

    def _found(self, key: str) -> bytes | None:
        """Return the document from disk; waits for the process that makes documents in advance."""
        path, warming, until = self.folder / key, self._warming, time.monotonic() + _WARMING_S
        while warming is not None and warming.returncode is None and time.monotonic() < until and not path.exists():
            time.sleep(POLL_S)
        return read_checked(path)

    def _made(self, wanted: Schema, kind: Kind, key: str) -> bytes:
        request = json.dumps({"schema": wanted.to_json(), "kind": kind}).encode()
        document = run_module("kernel_monitor.views", request, low_priority=False)
        self._keep(key, document)
        return document

    def _keep(self, key: str, document: bytes) -> None:
        try:
            _write(self.folder / key, document)
        except OSError as error:
            log.debug("the chart document is not kept: %s", error)  # the next process makes it again


def cache_folder() -> Path:
    """Return the cache folder of the environment or of the user."""
    return user_cache("documents")


def key_of(wanted: Schema, kind: Kind) -> str:
    """Return the file name of a document: a hash of its shape, its kind and the versions that make it."""
    return _digest(wanted.to_json(), kind, *_versions()) + ".json"


@lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    """Return the versions of the packages that make documents, and the modification times of our modules."""
    package = Path(__file__).resolve().parents[1]
    files = sorted([*(package / "views").glob("*.py"), *(package / "store").glob("*.py")])
    times = [f"{path.name} {path.stat().st_mtime_ns}" for path in files]
    return (__version__, version(), platform.python_version(), *times)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _write(path: Path, document: bytes) -> None:
    """Write a document, and delete the folder's oldest files."""
    write_checked(path, document)
    prune(path.parent, files=KEPT)


# ---- BokehJS as this environment's Bokeh ships it, and its version, without importing Bokeh.


@lru_cache(maxsize=1)
def version() -> str:
    """Return the version of Bokeh."""
    return metadata.version("bokeh")


def path() -> Path:
    """Return the file of BokehJS.

    Raises:
        MonitorError: Bokeh is not installed.
    """
    spec = util.find_spec("bokeh")
    if spec is None or spec.origin is None:
        raise MonitorError("bokeh is not installed in the kernel's environment: pip install bokeh.")
    return Path(spec.origin).parent / "server" / "static" / "js" / "bokeh.min.js"
