"""Checks of JSON that others send, by tables of types, ranges and lengths: requests of pages, frames of ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from .text import printable, quoted

Check = Callable[[Any], Any]
"""Returns the value as it is kept; a ValueError says what it is not."""

MOST_OF_A_KNOB = 256  # a slip of the finger must not start ten thousand processes


def number(least: float, most: float) -> Check:
    def check(value: Any) -> float:
        if type(value) not in (int, float) or not least <= value <= most:  # NaN is in no range
            raise ValueError(f"is no number from {least:g} to {most:g}")
        return float(value)

    return check


def whole(least: int = 0, most: int = 1 << 40) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"is no whole number from {least} to {most}")
        return value

    return check


def text(most: int) -> Check:
    """Return a check for text of at most so many letters, which makes its control characters visible."""

    def check(value: Any) -> str:
        if type(value) is not str or len(value) > most:
            raise ValueError(f"is no text of at most {most} letters")
        return printable(value)

    return check


def verbatim(most: int, least: int = 1) -> Check:
    """Return a check for text that is kept as it is, such as a path; half a character, which cannot be encoded, is
    refused.
    """

    def check(value: Any) -> str:
        if type(value) is not str or not least <= len(value) <= most:
            raise ValueError(f"is no text of {least:,} to {most:,} letters")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("has half a character in it (a lone surrogate): leave that out") from None
        return value

    return check


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("is neither true nor false")
    return value


def maybe(check: Check) -> Check:
    """Return what `check` takes, or null."""
    return lambda value: None if value is None else check(value)


def many(check: Check, most: int) -> Check:
    """Return a check for a list of at most so many."""

    def checked(value: Any) -> list[Any]:
        if type(value) is not list or len(value) > most:
            raise ValueError(f"is no list of at most {most}")
        return [check(entry) for entry in value]

    return checked


def row(*checks: Check) -> Check:
    """Return a check for a list of exactly these."""

    def checked(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(checks):
            raise ValueError(f"is no list of {len(checks)}")
        return tuple(check(entry) for check, entry in zip(checks, value, strict=True))

    return checked


def table(key: Check, value: Check, most: int) -> Check:
    """Return a check for a JSON object of at most so many keys of one kind."""

    def checked(found: Any) -> dict[Any, Any]:
        if type(found) is not dict or len(found) > most:
            raise ValueError(f"is no object of at most {most} fields")
        return {key(name): value(entry) for name, entry in found.items()}

    return checked


def fields(checks: Mapping[str, Check], **missing: Any) -> Check:
    """Return a check for a JSON object with these fields; `missing` has the values of those that may be left out."""

    def checked(found: Any) -> dict[str, Any]:
        if type(found) is not dict:
            raise ValueError("is no object")
        kept: dict[str, Any] = {}
        for name, check in checks.items():
            try:
                kept[name] = missing[name] if name in missing and name not in found else check(found[name])
            except KeyError:
                raise ValueError(f"{name} is missing") from None
            except ValueError as error:
                joined = " " if str(error).startswith(("is ", "has ")) else ": "
                raise ValueError(f"{name}{joined}{error}") from None
        return kept

    return checked


def only(required: Mapping[str, Check] | None = None, /, **optional: tuple[Check, Any]) -> Check:
    """Return a check for a JSON object with these fields and no others, such as misspelt ones.

    Each of those that may be left out has its check, and the value that stands for it then.
    """
    checks = {**(required or {}), **{name: check for name, (check, _) in optional.items()}}
    check = fields(checks, **{name: missing for name, (_, missing) in optional.items()})

    def checked(found: Any) -> Any:
        unknown = [name for name in found if name not in checks] if type(found) is dict else []
        if unknown:
            raise ValueError(f"there is no {quoted(unknown[0])}; there are {', '.join(checks) or 'no arguments'}")
        return check(found)

    return checked


def matching(pattern: str, most: int, kept: Callable[[str], Any] = str) -> Check:
    """Return a check for text of this form."""
    form, check = re.compile(pattern, re.ASCII), text(most)

    def checked(value: Any) -> Any:
        if form.fullmatch(check(value)) is None:
            raise ValueError(f"has a name that is none: {value!r:.60}")
        return kept(value)

    return checked
