"""``%monitor sidebar``: the page whose cell asks for the sidebar, until that page answers that it opens it.

The page is named by its connection's session id, which every request of a cell carries: other pages of the same kernel
leave their sidebars as they are. A page that connects after the cell has run finds the request in its first answer.
"""

from __future__ import annotations

import threading


class SidebarRequest:
    """At most one at a time: a later one takes the place of one that nobody answered. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._page: str | None = None
        self._answered = threading.Event()

    @property
    def page(self) -> str | None:
        """The session id of the page that is to open its sidebar; None where nothing is asked for."""
        return self._page

    def ask(self, page: str) -> None:
        """The sidebar of this page is wanted."""
        with self._lock:
            self._page = page
            self._answered.clear()

    def answer(self, page: str) -> None:
        """This page opens its sidebar."""
        with self._lock:
            if page == self._page:
                self._page = None
                self._answered.set()

    def wait(self, seconds: float) -> bool:
        """Whether the page answers within so many seconds."""
        return self._answered.wait(seconds)
