"""HTML in which text is text: what is not an :class:`Html` is escaped, always."""

from __future__ import annotations

from html import escape


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


def table(head: list[str], rows: list[list[str]], *, numbers: range) -> Html:
    """A table whose first column names its rows; the columns in `numbers` are aligned as numbers."""

    def kind(column: int) -> str | None:
        return "number" if column in numbers else None

    top = el("tr", *(el("th", cell, scope="col", class_=kind(k)) for k, cell in enumerate(head)))
    body = [
        el(
            "tr",
            el("th", row[0], scope="row"),
            *(el("td", cell, class_=kind(k)) for k, cell in enumerate(row[1:], start=1)),
        )
        for row in rows
    ]
    inner = el("table", el("thead", top), el("tbody", *body))
    # Scrolls by itself on a narrow screen; then a keyboard must be able to reach it.
    return el("div", inner, class_="scroll", tabindex="0")
