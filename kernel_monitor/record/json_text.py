"""Reads JSON from a file of unknown origin: bounded, with finite numbers, and in UTF-8."""

from __future__ import annotations

import json
import math
from typing import Any

from .file_limits import INTEGER, TEXT_BYTES, TEXT_DEPTH, TEXT_VALUES


class Budget:
    """The characters and values that several texts may have together; `spent` once a text did not fit."""

    def __init__(self) -> None:
        self._bytes, self._values = TEXT_BYTES, TEXT_VALUES
        self.spent = False

    def take(self, text: str) -> None:
        """Count a text. Raises ValueError if it is too much."""
        self._bytes -= len(text)
        # A text has at most one value more than commas and opening brackets.
        self._values -= text.count(",") + text.count("[") + text.count("{") + 1
        if self._bytes < 0 or self._values < 0:
            self.spent = True
            raise ValueError("it holds more than any recording")


def parse(text: object, budget: Budget | None = None) -> Any:
    """The value of a JSON text: numbers that are not finite are None, lone surrogates are replaced.

    Args:
        text: as the file has it.
        budget: shared with other texts; a separate budget if not given.

    Raises:
        ValueError: it is no JSON, or larger or deeper than the recorder writes.
    """
    if not isinstance(text, str):
        raise ValueError(f"{type(text).__name__} in place of text")
    (Budget() if budget is None else budget).take(text)
    try:
        value = json.loads(text, parse_constant=lambda _name: None)
    except RecursionError as error:
        raise ValueError("its lists are too deep") from error
    return _tidy(value, TEXT_DEPTH)


def _tidy(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        if not -INTEGER <= value <= INTEGER:
            raise ValueError("it has a number of too many digits")
        return value
    if value is None:
        return None
    if depth == 0:
        raise ValueError("its lists are too deep")
    if isinstance(value, list):
        return [_tidy(entry, depth - 1) for entry in value]
    return {_encodable(key): _tidy(entry, depth - 1) for key, entry in value.items()}


def _encodable(text: str) -> str:
    """Without lone surrogates, by which Python spells odd file names and which no message or page can hold."""
    if text.isascii():
        return text
    return text.encode("utf-8", errors="surrogatepass").decode("utf-8", errors="replace")
