"""`%monitor sidebar`: asks the page of a cell to open its sidebar, until that page confirms.

The page is identified by the session id of its connection, which every cell request carries, so that other pages of the
same kernel ignore it. A page that connects later finds the request in the reply to its first request.
"""

from __future__ import annotations

import threading


class SidebarRequest:
    """At most one open request; a later one replaces it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._page: str | None = None
        self._answered = threading.Event()

    @property
    def page(self) -> str | None:
        """The session id of the page that is to open its sidebar, or None."""
        return self._page

    def ask(self, page: str) -> None:
        """Request the sidebar of a page."""
        with self._lock:
            self._page = page
            self._answered.clear()

    def answer(self, page: str) -> None:
        """A page confirms that it opens its sidebar."""
        with self._lock:
            if page == self._page:
                self._page = None
                self._answered.set()

    def wait(self, seconds: float) -> bool:
        """Whether the page confirms within `seconds`."""
        return self._answered.wait(seconds)
