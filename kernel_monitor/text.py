"""Text that people and files give, made safe to show: on a page, in a report, in a terminal.

Control characters would steer a terminal, bidirectional ones reverse the rest of a line, and a lone surrogate (half a
character; Python also spells file names with them that are not UTF-8) cannot be encoded at all.
"""

from __future__ import annotations

import re
from typing import Any

from .errors import MonitorError

NAME_LETTERS = 80
"""Of a name, as it is kept and shown."""

_SURROGATE = re.compile("[\ud800-\udfff]")
# Category Cc but for tab and line feed; the bidirectional ones of Cf; line and paragraph separators; Cs.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def shown(text: str) -> str:
    r"""The text with every character that is not safe to show as its escape: `\x1b`, `\u202e`; tabs and lines stay."""
    if text.isascii() and text.isprintable():  # nearly all of them
        return text
    return _UNSAFE.sub(_escape, text)


def line(text: str, most: int = NAME_LETTERS) -> str:
    """The text as one line that is safe to show, cut after so many letters."""
    words = shown(" ".join(text.split()))
    return words if len(words) <= most else f"{words[: most - 1]}…"


def given(text: object, what: str, most: int = NAME_LETTERS) -> str:
    """A text that somebody gives, as one line that is safe to show.

    Args:
        text: what was given.
        what: what it is, for the error: `The name of a loader`.
        most: letters that are kept.

    Raises:
        MonitorError: it has half a character in it, which can be neither shown nor stored.
    """
    words = str(text)
    check(words, what)
    return line(words, most)


def check(text: str, what: str) -> None:
    """Refuse text that cannot be encoded.

    Raises:
        MonitorError: it has half a character in it.
    """
    half = _SURROGATE.search(text)
    if half is not None:
        raise MonitorError(f"{what} has half a character in it ({half[0]!r}, a lone surrogate): leave that out.")


def shown_in(value: Any) -> Any:
    """The same of every text in lists and dicts, their keys included; everything else as it is."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {shown(key) if isinstance(key, str) else key: shown_in(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [shown_in(one) for one in value]
    return value


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name, as `os.fsdecode` spells it
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
