"""Plain loops over DataLoaders, with the monitor's functions in torch's classes, and clicks in them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from kernel_monitor.loaders import live, takeover
from kernel_monitor.steps import attached
from kernel_monitor.steps.attached_loader import AttachedLoader

from .conftest import settle


@contextlib.contextmanager
def attaching(*, polled: bool = False) -> Iterator[None]:
    """Attach to the DataLoaders that are iterated meanwhile; `polled`: another thread reads their states, as pages do.

    There, all is as if no other test had attached before.
    """
    attached.detach()
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
    """The engines of a DataLoader that is iterated, or was."""
    found = attached.attached(loader)
    assert isinstance(found, AttachedLoader)
    return takeover.takeover(found)


def click(loader: Any, backend: str = "dali-cpu") -> None:
    """Click, and wait until the engine is ready, or until only the loop's thread can go on."""
    engines = engines_of(loader)
    if not engines.backends[backend].available:
        return
    engines.switch(backend)
    wait_until_ready(loader)


def wait_until_ready(loader: Any) -> None:
    """Wait until no engine is being prepared."""
    made = engines_of(loader).loader
    if made is not None:
        settle(made)


def click_from_page(loader: Any, backend: str = "dali-cpu") -> None:
    """Click on another thread, as a page does: nothing is made there that runs the user's code."""
    thread = threading.Thread(target=engines_of(loader).switch, args=(backend,))
    thread.start()
    thread.join()
