"""HTML in which text is text: what is not an :class:`Html` is escaped, always."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Html(str):
    """A piece of finished HTML. Only the functions here, and templates of this package, make one."""

    __slots__ = ()


def el(name: str, *children: str | None, **attributes: str | None) -> Html:
    """An element; strings among the children and all attribute values are escaped, None is left out.

    A trailing underscore of an attribute's name is dropped, other underscores become hyphens.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str | None) -> Html:
    """Pieces one after the other; what is not `Html` is escaped."""
    return Html("".join(one if isinstance(one, Html) else escape(one) for one in children if one is not None))


def table(head: list[str], rows: list[list[str]], *, numbers: range, label: str | None = None) -> Html:
    """A table whose first column names its rows; the columns in `numbers` are aligned as numbers.

    Args:
        head: the columns' headings; an empty first one is said to a screen reader only.
        label: what a screen reader calls the table.
    """

    def kind(column: int) -> str | None:
        return "number" if column in numbers else None

    words = [el("span", "what", class_="unseen") if k == 0 and not cell else cell for k, cell in enumerate(head)]
    top = el("tr", *(el("th", cell, scope="col", class_=kind(k)) for k, cell in enumerate(words)))
    body = [
        el(
            "tr",
            el("th", row[0], scope="row"),
            *(el("td", cell, class_=kind(k)) for k, cell in enumerate(row[1:], start=1)),
        )
        for row in rows
    ]
    return scrolled(el("thead", top), el("tbody", *body), label=label)


def scrolled(*parts: Html, label: str | None = None, kind: str | None = None) -> Html:
    """A table of these parts that scrolls by itself on a narrow screen; then a keyboard must be able to reach it."""
    role = "group" if label else None
    return el("div", el("table", *parts, class_=kind), class_="scroll", tabindex="0", role=role, aria_label=label)


def section(key: str, title: str, note: str | None, *parts: str | None) -> Html:
    """A part of the page that can be linked to as `#key`."""
    heading = el("h2", title, id=f"{key}-title")
    said = el("p", note, class_="note") if note else None
    return el("section", heading, said, *parts, id=key, aria_labelledby=f"{key}-title")


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 epoch`, `1,280 epochs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def folded(summary: str, *parts: str | None) -> Html:
    """What is shown when somebody asks for it, and on paper."""
    return el("details", el("summary", summary), *parts)


def listed(lines: Iterable[str], name: str = "ul", **attributes: str | None) -> Html:
    """A list, an element for each line."""
    return el(name, *(el("li", line) for line in lines), **attributes)
