"""Makes text from users and files safe to show on a page, in a report or in a terminal.

Control characters would control a terminal, bidirectional ones reverse the rest of a line, and a lone surrogate (half a
character, which Python uses for file names that are not UTF-8) cannot be encoded.
"""

from __future__ import annotations

import logging
import re
import reprlib
import sys
from typing import Any, TypeVar

from .errors import MonitorError

T = TypeVar("T")
NAME_LETTERS = 80  # longest name that is kept and shown, in characters
_CAUSE_LETTERS = 200  # longest text of an exception

_SURROGATE = re.compile("[\ud800-\udfff]")
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = NAME_LETTERS
# Category Cc except tab and line feed; the bidirectional ones of Cf; line and paragraph separators; Cs.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Return the text with unsafe characters escaped (`\x1b`, `\u202e`); tabs and line feeds stay."""
    if text.isascii() and text.isprintable():  # the usual case
        return text
    return _UNSAFE.sub(_escape, text)


def line(text: str, most: int = NAME_LETTERS) -> str:
    """Return the text as one line that is safe to show, at most `most` characters long."""
    words = printable(" ".join(text.split()))
    return words if len(words) <= most else f"{words[: most - 1]}…"


def cause(error: BaseException, most: int = _CAUSE_LETTERS) -> str:
    """Return an exception's type and text, `ValueError: …`, as one line that is safe to show, cut to `most` letters."""
    kind = type(error).__name__
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - a foreign exception's own code: its type is enough
        words = ""
    return line(f"{kind}: {words}" if words else kind, most)


def quoted(value: object, most: int = NAME_LETTERS) -> str:
    """Return a value as Python writes it, cut to `most` letters, for a message that names what was given."""
    try:
        words = _SHORT.repr(value)
    except Exception:  # noqa: BLE001 - a foreign object's own code, or a number with too many digits
        words = f"a value of type {type(value).__name__}"
    return line(words, most)


def log_outside(log: logging.Logger, what: str, *args: object, level: int = logging.WARNING) -> None:
    """Log the exception under way, which is no fault of ours, in one line; its traceback is logged at debug level."""
    error = sys.exception() or Exception()
    log.log(level, "%s (%s)", what % args, cause(error))
    log.debug("The traceback of that:", exc_info=error)


def log_failed(log: logging.Logger, what: str, *args: object) -> None:
    """Log the exception under way: of files, processes, memory and packages in one line, else with its traceback."""
    error = sys.exception()
    of_psutil = any(kind.__module__.startswith("psutil") for kind in type(error).__mro__)
    if of_psutil or isinstance(error, OSError | ImportError | MemoryError | MonitorError):
        log_outside(log, what, *args)
    else:
        log.error(what, *args, exc_info=error)


def checked_text(text: object, what: str, most: int = NAME_LETTERS) -> str:
    """Return a user's text as one line that is safe to show, cut to `most` characters; `what` is as for `check`."""
    words = str(text)
    check(words, what)
    return line(words, most)


def check(text: str, what: str) -> None:
    """Raise a MonitorError for text with half a character, which cannot be encoded; `what` describes it there."""
    half = _SURROGATE.search(text)
    if half is not None:
        raise MonitorError(f"{what} has half a character in it ({half[0]!r}, a lone surrogate): leave that out.")


def printable_in(value: T) -> T:
    """Return nested lists and dicts with `printable` of every text, keys included; tuples become lists."""
    found: Any = value
    if isinstance(value, str):
        found = printable(value)
    elif isinstance(value, dict):
        found = {printable(key) if isinstance(key, str) else key: printable_in(item) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        found = [printable_in(item) for item in value]
    result: T = found
    return result


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name, encoded by `os.fsdecode`
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
