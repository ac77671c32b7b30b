"""Helpers for tests of attached DataLoaders: attach for a block, click, and wait for an engine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from kernel_monitor.loaders import live, takeover
from kernel_monitor.steps import attached, attached_entries
from kernel_monitor.steps.attached_loader import AttachedLoader

from .conftest import settle


@contextlib.contextmanager
def attaching(*, polled: bool = False) -> Iterator[None]:
    """Attach to the DataLoaders that are iterated in the block, starting without entries of earlier tests.

    `polled`: another thread reads the loaders' states all the time, as pages do.
    """
    attached.detach()
    attached._entries = attached_entries.Loaders()
    assert attached.attach()
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(0.001):
            for loader in live():
                loader.state()
                loader.epochs()
                _ = loader.backends, loader.knobs, loader.worker_pids

    poller = threading.Thread(target=poll)
    if polled:
        poller.start()
    try:
        yield
    finally:
        ended.set()
        if polled:
            poller.join()
        attached.detach()


def engines_of(loader: Any) -> takeover.Takeover:
    """Return the engines of an attached DataLoader."""
    found = attached.attached(loader)
    assert isinstance(found, AttachedLoader)
    return takeover.takeover(found)


def click(loader: Any, backend: str = "dali-cpu") -> None:
    """Click on an engine, if it is available, and wait until it is ready or waits for the loop's thread."""
    engines = engines_of(loader)
    if not engines.backends[backend].available:
        return
    engines.switch(backend)
    wait_until_ready(loader)


def wait_until_ready(loader: Any) -> None:
    """Wait until no engine is being prepared in the background."""
    made = engines_of(loader).loader
    if made is not None:
        settle(made)


def click_from_page(loader: Any, backend: str = "dali-cpu") -> None:
    """Click on another thread, as a page does; the user's code must not be called there."""
    thread = threading.Thread(target=engines_of(loader).switch, args=(backend,))
    thread.start()
    thread.join()
