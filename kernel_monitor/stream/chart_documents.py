"""Cache of chart documents: made once per shape of machine and kept on disk, so that pages wait for Bokeh only once.

A document is made in a separate process, because Bokeh would hold the GIL of the process that trains: one at a time,
the first one at normal priority, because a page waits for it. It ends with the process that trains.
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
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from .._version import __version__
from ..cache import create_folder, prune, read_checked, user_cache, write_checked
from ..errors import MonitorError
from ..os_process import in_forked_children
from ..store import Schema
from ..store.charts import Kind, document_shape, fill_document
from .render_process import command, environment, run_module

KEPT = 64  # documents kept on disk
HELD = 8  # documents kept in memory
POLL_S = 0.02
_WARMING_S = 10.0  # how long to wait for the process that makes documents in advance: on two busy cores it takes 6 s

Make = Callable[[Schema, Kind], dict[str, Any]]  # makes a document: `views.document`

log = logging.getLogger(__name__)
_making = threading.Lock()  # held while a process of this one makes a document


@in_forked_children
def _forget() -> None:
    global _making  # noqa: PLW0603 - a thread that a forked child has not got may hold it
    _making = threading.Lock()


class Documents:
    """The documents of one process, kept in a folder (by default that of the environment or user). Thread-safe."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder() if folder is None else folder
        self._lock = threading.Lock()
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._warming: subprocess.Popen[bytes] | None = None
        self._has_made = False
        here = _digest(platform.node(), os.cpu_count(), *_versions())
        self._warm_marker = self.folder / f"warm-{here}"  # exists once this machine's documents were made
        self._stored_hello = self.folder / f"machine-{here}.json"

    def get(self, schema: Schema, kind: Kind = "live") -> bytes:
        """Return the document of a schema, as JSON; makes it if it is not cached, MonitorError if that fails."""
        return self.newest(lambda: schema, kind)[1]

    def newest(self, schema: Callable[[], Schema], kind: Kind = "live") -> tuple[Schema, bytes]:
        """Return the schema of the moment with its document, as `get` makes it.

        One document is made at a time: who waits for that gets the document of the schema as it is then, so that of
        many schemas in a row only the first and the last one have documents made.
        """
        wanted = schema()
        document = self._cached(wanted, kind)
        if document is None:
            with _making:
                wanted = schema()
                document = self._made(wanted, kind)
        return wanted, fill_document(document, wanted)

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

    def _cached(self, schema: Schema, kind: Kind) -> bytes | None:
        """Return the document from memory or disk."""
        key = key_of(document_shape(schema), kind)
        return self._held.get(key) or self._hold(key, read_checked(self.folder / key))

    def _hold(self, key: str, document: bytes | None) -> bytes | None:
        with self._lock:
            if document is not None:
                self._held[key] = document
            if len(self._held) > HELD:
                self._held.popitem(last=False)
        return document

    def _made(self, schema: Schema, kind: Kind) -> bytes:
        """Make the document in a process, or let the one finish that makes documents in advance; no other runs."""
        warming, until = self._warming, time.monotonic() + _WARMING_S
        while warming is not None and warming.poll() is None:
            if (found := self._cached(schema, kind)) is not None:
                return found
            if time.monotonic() >= until:
                warming.kill()  # what it made is kept, and the next kernel goes on with the rest
            time.sleep(POLL_S)
        if (found := self._cached(schema, kind)) is not None:
            return found
        wanted = document_shape(schema)
        request = json.dumps({"schema": wanted.to_json(), "kind": kind}).encode()
        # A page waits for its first charts; later ones replace charts that go on meanwhile.
        document = run_module("kernel_monitor.views", request, low_priority=self._has_made)
        self._has_made = True
        self._keep(key_of(wanted, kind), document)
        self._hold(key_of(wanted, kind), document)
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
