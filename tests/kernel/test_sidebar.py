"""`%monitor sidebar`: which page is told, when, and what the cell says."""

from __future__ import annotations

import time

from .kernels import Page


def _printed(page: Page, message: str, seconds: float = 20) -> str:
    """What the cell of this request printed, once it has ended."""
    printed = ""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        news = page.client.get_iopub_msg(timeout=seconds)
        if news["parent_header"].get("msg_id") != message:
            continue
        if news["header"]["msg_type"] == "stream":
            printed += news["content"]["text"]
        if news["content"].get("execution_state") == "idle":
            return printed
    raise AssertionError(f"the cell did not end; it printed {printed!r}")


def test_the_page_that_answers_in_the_middle_of_the_cell(page: Page) -> None:
    me = page.client.session.session
    page.iopub(0.2)
    cell = page.start("%monitor sidebar")
    while (notice := page.client.get_iopub_msg(timeout=20))["content"].get("kind") != "sidebar":
        pass
    assert notice["content"]["page"] == me
    assert notice["parent_header"].get("msg_id") != cell, "nbclient logs an error for what belongs to a cell"
    assert page.ask("glance", client="one")["sidebar"] == me
    page.ask("sidebar", page=me)
    assert _printed(page, cell) == "The sidebar at the right, Kernel monitor, shows this kernel.\n"
    assert page.ask("glance", client="one")["sidebar"] is None


def test_a_page_that_comes_later_finds_the_request(page: Page) -> None:
    me = page.client.session.session
    page.iopub(0.2)
    cell = page.start("%monitor stop\n%monitor sidebar")
    page.ask("sidebar", page="another page")
    said = _printed(page, cell)
    assert said.startswith("No sidebar has answered yet: it opens once ")
    assert "VS Code, Colab" in said
    assert "%monitor shows the same in the cell" in said
    assert said.count("\n") == 1
    assert page.ask("hello")["running"] is True
    assert page.ask("glance", client="one")["sidebar"] == me
    page.ask("sidebar", page=me)
    assert page.ask("glance", client="one")["sidebar"] is None
