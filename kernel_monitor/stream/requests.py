"""What a page may ask for: the form of a request, and the sentences that refuse any other."""

from __future__ import annotations

from typing import Any

from ..errors import MonitorError
from ..text import check
from . import wire

SETTINGS = ("interval", "history", "charts", "record", "price")
KNOBS = ("workers", "prefetch", "threads")


class BadRequest(MonitorError):
    """A control message that is not of the protocol's form."""


def parse(content: Any) -> tuple[str, dict[str, Any]]:
    """The command and its arguments."""
    if not isinstance(content, dict):
        raise BadRequest("The request's content is not an object.")
    protocol = content.get("protocol")
    # A page of another version must at least learn which version and environment it speaks to.
    if protocol != wire.PROTOCOL and content.get("command") != "hello":
        raise BadRequest(
            f"This kernel's kernel_monitor speaks protocol {wire.PROTOCOL}, the page {protocol!r}: "
            "bring both environments to the same version with pip install -U kernel-monitor."
        )
    command, args = content.get("command"), content.get("args", {})
    if not isinstance(command, str) or not isinstance(args, dict):
        raise BadRequest("A request needs a command (text) and args (an object).")
    return command, args


def settings(command: str, args: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a command that takes settings and nothing else; their values are checked where they are set."""
    unknown = set(args) - set(SETTINGS)
    if unknown:
        raise BadRequest(f"{command}: there is no {min(unknown)!r} to set; there are {', '.join(SETTINGS)}.")
    return args


def text(args: dict[str, Any], key: str) -> str:
    """A text that must be there."""
    value = args.get(key)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"The request needs {key!r} (text).")
    check(value, f"The request's {key!r}")
    return value


def flag(command: str, args: dict[str, Any], key: str) -> bool:
    """True or false; false where it is not given."""
    value = args.get(key, False)
    if not isinstance(value, bool):
        raise BadRequest(f"{command}: {key} is true or false.")
    return value


def knobs(args: dict[str, Any]) -> dict[str, int]:
    """The knobs of a request `set`."""
    found = {name: value for name, value in args.items() if name != "loader"}
    for name, value in found.items():
        if name not in KNOBS:
            raise BadRequest(f"set: there is no {name!r}. What can be set is: {', '.join(KNOBS)}.")
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadRequest(f"set: {name} is a whole number.")
    return found


def only(command: str, args: dict[str, Any], *known: str) -> None:
    """Refuse a request with fields that it does not have: a misspelt one must not go unnoticed."""
    unknown = set(args) - set(known)
    if unknown:
        raise BadRequest(f"{command}: there is no {min(unknown)!r}; there are {', '.join(known)}.")
