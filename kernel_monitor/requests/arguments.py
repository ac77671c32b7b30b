"""Validation of requests from pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import MonitorError
from ..protocol.message_types import PROTOCOL
from ..text import check

SETTINGS = ("interval", "history", "charts", "record", "price", "unfolded")
KNOBS = ("workers", "prefetch", "threads")

Args = Mapping[str, object]  # the arguments of a request, as the page sent them


class BadRequest(MonitorError):
    """A request that does not follow the protocol."""


def parse(content: Any) -> tuple[str, Args]:
    """The command and its arguments; BadRequest if the content is malformed or of another protocol."""
    if not isinstance(content, dict):
        raise BadRequest("The request's content is not an object.")
    protocol = content.get("protocol")
    # `hello` is answered for any protocol, so that the page can show both versions.
    if protocol != PROTOCOL and content.get("command") != "hello":
        raise BadRequest(
            f"This kernel's kernel_monitor speaks protocol {PROTOCOL}, the page {protocol!r}: "
            "bring both environments to the same version with pip install -U kernel-monitor."
        )
    command, args = content.get("command"), content.get("args", {})
    if not isinstance(command, str) or not isinstance(args, dict):
        raise BadRequest("A request needs a command (text) and args (an object).")
    return command, args


def text(args: Args, key: str) -> str:
    """A required text argument."""
    value = args.get(key)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"The request needs {key!r} (text).")
    check(value, f"The request's {key!r}")
    return value


def optional(args: Args, key: str) -> str | None:
    """An optional text argument."""
    return None if args.get(key) is None else text(args, key)


def flag(command: str, args: Args, key: str) -> bool:
    """An optional boolean argument, false by default."""
    value = args.get(key, False)
    if not isinstance(value, bool):
        raise BadRequest(f"{command}: {key} is true or false.")
    return value


def number(command: str, args: Args, key: str) -> int:
    """A required whole number."""
    value = args.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"{command}: {key} is a whole number.")
    return value


def knobs(args: Args) -> dict[str, int]:
    """The knobs of the command `set`."""
    only("set", args, "loader", *KNOBS)
    found: dict[str, int] = {}
    for name, value in args.items():
        if name == "loader":
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadRequest(f"set: {name} is a whole number.")
        found[name] = value
    return found


def only(command: str, args: Args, *known: str) -> None:
    """Refuse unknown arguments, such as misspelt ones."""
    unknown = set(args) - set(known)
    if unknown:
        raise BadRequest(f"{command}: there is no {min(unknown)!r}; there are {', '.join(known)}.")
