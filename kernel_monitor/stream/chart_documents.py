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
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platformdirs import user_cache_path

from .._version import __version__
from ..store import Schema
from ..store.charts import Kind
from ..store.shape import filled, shape
from . import bokehjs
from .render_process import command, environment, run_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FOLDER = "KERNEL_MONITOR_CACHE"
"""Environment variable with the cache folder, instead of the user's."""
KEPT = 64
"""Documents kept on disk."""
HELD = 8
"""Documents kept in memory."""
LOOK_S = 0.02
WARMING_S = 10.0
"""How long to wait for the process that makes documents in advance: on two busy cores it takes 6 s."""

Make = Callable[[Schema, Kind], "dict[str, Any]"]
"""Makes a document; `views.document`."""

log = logging.getLogger(__name__)


class Documents:
    """The documents of one process. Thread-safe.

    Args:
        folder: the cache folder; by default that of the environment or of the user.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder() if folder is None else folder
        self._lock = threading.Lock()
        self._held: dict[str, Future[bytes]] = {}
        self._warming: subprocess.Popen[bytes] | None = None

    def get(self, schema: Schema, kind: Kind = "live") -> bytes:
        """The document of a schema, as JSON; makes it if it is not cached.

        Raises:
            MonitorError: it could not be made.
        """
        wanted = shape(schema)
        key = key_of(wanted, kind)
        with self._lock:
            held, known = self._held.get(key), True
            if held is None:
                held, known = self._held.setdefault(key, Future()), False
                while len(self._held) > HELD:
                    del self._held[next(iter(self._held))]
        if not known:
            try:
                held.set_result(self._found(key) or self._made(wanted, kind, key))
            except BaseException as error:  # noqa: BLE001 - raised below and in every waiting thread
                with self._lock:
                    self._held.pop(key, None)  # the next request tries again
                held.set_exception(error)
        return filled(held.result(), schema)

    def warm(self) -> None:
        """Make the usual documents of this machine in a background process, unless they are cached."""
        if (self.folder / _marker()).exists():
            return
        try:
            _create(self.folder)
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
        """The sampler's hello from when documents were made on this machine, or None."""
        stored = _read(self.folder / _machine())
        return None if stored is None else dict(json.loads(stored))

    def keep_hello(self, hello: Mapping[str, Any]) -> None:
        """Store the hello of this machine's sampler.

        Raises:
            OSError: the folder cannot be written to.
        """
        _write(self.folder, _machine(), json.dumps(hello).encode())

    def get_here(self, schema: Schema, kind: Kind, make: Make) -> bytes:
        """As `get`, for a process that does not train: a document that is not cached is made in it, by `make`."""
        wanted = shape(schema)
        key = key_of(wanted, kind)
        document = _read(self.folder / key)
        if document is None:
            document = json.dumps(make(wanted, kind), separators=(",", ":")).encode()
            self._keep(key, document)
        return filled(document, schema)

    def warm_up(self, schemas: Iterable[tuple[Schema, Kind]], make: Make) -> int:
        """Make the documents that are not cached, in this process; returns their number.

        Raises:
            OSError: the folder cannot be written to.
        """
        _create(self.folder)
        made = 0
        for schema, kind in schemas:
            made += not (self.folder / key_of(shape(schema), kind)).exists()
            self.get_here(schema, kind, make)
        (self.folder / _marker()).touch()
        return made

    def _found(self, key: str) -> bytes | None:
        """The document from disk; waits for the process that makes documents in advance."""
        warming, until = self._warming, time.monotonic() + WARMING_S
        while warming is not None and warming.returncode is None and time.monotonic() < until:
            found = _read(self.folder / key)
            if found is not None:
                return found
            time.sleep(LOOK_S)
        return _read(self.folder / key)

    def _made(self, wanted: Schema, kind: Kind, key: str) -> bytes:
        request = json.dumps({"schema": wanted.to_json(), "kind": kind}).encode()
        document = run_module("kernel_monitor.views", request, low_priority=False)
        self._keep(key, document)
        return document

    def _keep(self, key: str, document: bytes) -> None:
        try:
            _write(self.folder, key, document)
        except OSError as error:
            log.debug("the chart document is not kept: %s", error)  # the next process makes it again


def cache_folder() -> Path:
    """The cache folder of the environment or of the user."""
    chosen = os.environ.get(FOLDER)
    return (Path(chosen).expanduser().absolute() if chosen else user_cache_path("kernel_monitor")) / "documents"


def key_of(wanted: Schema, kind: Kind) -> str:
    """File name of a document: a hash of its shape, its kind and of the versions that make it."""
    return _digest(json.dumps([wanted.to_json(), kind, *_versions()])) + ".json"


@lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    """Versions of the packages that make documents, and modification times of our modules, for source checkouts."""
    package = Path(__file__).resolve().parents[1]
    files = sorted([*(package / "views").glob("*.py"), *(package / "store").glob("*.py")])
    times = [f"{path.name} {path.stat().st_mtime_ns}" for path in files]
    return (__version__, bokehjs.version(), platform.python_version(), *times)


def _marker() -> str:
    """Name of the file that marks that this machine's documents were made."""
    return f"warm-{_here()}"


def _machine() -> str:
    """Name of the file with the hello of this machine's sampler."""
    return f"machine-{_here()}.json"


def _here() -> str:
    return _digest(json.dumps([platform.node(), os.cpu_count(), *_versions()]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(path: Path) -> bytes | None:
    """A document; None if it is missing or damaged."""
    try:
        digest, _, document = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return document if digest == hashlib.sha256(document).hexdigest().encode() else None


def _create(folder: Path) -> None:
    """Create the folder, accessible by its owner only.

    Raises:
        OSError: it cannot be created or written to, or the user has no home.
    """
    if not folder.is_absolute():
        raise OSError(f"{folder} is not an absolute path")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder} cannot be written to")


def _write(folder: Path, key: str, document: bytes) -> None:
    _create(folder)
    descriptor, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(hashlib.sha256(document).hexdigest().encode() + b"\n" + document)
    Path(name).replace(folder / key)
    _prune(folder)


def _prune(folder: Path) -> None:
    """Delete the oldest files; another process may do so at the same time."""
    files = []
    for path in folder.iterdir():
        try:
            files.append((path.stat().st_mtime_ns, path))
        except OSError:
            continue
    for _, path in sorted(files)[:-KEPT]:
        path.unlink(missing_ok=True)
