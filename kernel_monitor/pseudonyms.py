"""Privacy of other machines: exports and recordings have the ids of nodes (`node-1`) in place of their names.

Names of a cluster's machines tell who owns it and how it is built, and reports are sent to other people. A name is
replaced wherever it stands as a word of its own, in any text but the words that the package itself reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")
FEWEST = 3  # characters of a name that is replaced

STRUCTURAL = frozenset(
    {"action", "backend", "best", "currency", "engine", "kind", "loader", "path", "source", "target"}
)
"""The keys whose texts stay: a host that is called `torchvision` must not rename an engine."""
NAMING = frozenset({"id", "name"})
"""The keys of whole names: of a machine, which is replaced, or of something else, of which no part is."""


def pseudonymous(value: T, names: Mapping[str, str]) -> T:
    """Nested lists and dicts with each of `names` replaced by its pseudonym in every text; unchanged without names.

    Names of one or two characters, and mere numbers, stay: they stand in texts for anything.
    """
    known = {name.lower(): new for name, new in names.items() if len(name) >= FEWEST and not name.isdecimal()}
    if not known:
        return value
    pattern = _pattern(tuple(sorted(known, key=len, reverse=True)))
    found: T = _replaced(value, pattern, known)
    return found


def _replaced(value: Any, pattern: re.Pattern[str], names: Mapping[str, str]) -> Any:

    def new(found: re.Match[str]) -> str:
        # Letters of other scripts may match without being the other's lower case.
        return names.get(found["name"].lower(), "node")

    if isinstance(value, str):
        return pattern.sub(new, value)
    if isinstance(value, list | tuple):
        return [_replaced(entry, pattern, names) for entry in value]
    if isinstance(value, Mapping):
        kept = {key for key in NAMING if isinstance(value.get(key), str) and not pattern.fullmatch(value[key])}
        kept |= STRUCTURAL
        return {key: entry if key in kept else _replaced(entry, pattern, names) for key, entry in value.items()}
    return value


@lru_cache(maxsize=8)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Any of these names, the longest first, a host's with its domain; case does not count in the names of hosts."""
    words = "|".join(re.escape(name) for name in names)
    return re.compile(rf"(?<![\w-])(?<!\w\.)(?P<name>{words})(?![\w-]|\.\d)(?:\.[a-z][\w-]*)*", re.IGNORECASE)
