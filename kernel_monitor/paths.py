"""What a record may say of a file: its name, and no folder that it is in.

Recordings and reports are sent to other people, and folders are named after users, clients and projects. A path that is
known is reduced where it is recorded (`last_part`, `without`, `told`); `searched` finds paths in a text that nobody
knows them of, and can only guess where one ends.
"""

from __future__ import annotations

import ntpath
import os
import re
import sys
import tempfile
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_PLAIN = re.compile(r"[A-Za-z0-9]+")
_SCHEME = re.compile(r"\bfile:/{2}(?=/)")
# A home is its owner's name: what stands for it says that much and no more.
_HOME = re.compile(r"(?:/home|/Users|/export/home|[A-Za-z]:[\\/]Users)[\\/]([^\\/]+)")
# In quotes, as Python writes names: up to the quote that ends it, which no letter follows.
_QUOTED = re.compile(r"""(["'`])((?:~[\w.-]*|…|\.{1,2})?/|[A-Za-z]:[\\/]|\\\\)((?:\\.|(?!\1(?!\w))[^\n])*)\1(?!\w)""")
# Elsewhere a folder's name may have spaces, colons and commas inside, but ends before what looks like a file's suffix
# (`cat.jpg: truncated`), an address or a second path.
_FOLDER = r"""(?!\s)(?:(?!://|\.[A-Za-z]\w{{0,4}}(?:[\s:,;)\]]|$))(?:[^{end}\n'"<>|…]|(?<=\w)['"](?=\w)))+(?<![\s~])"""
_LAST = r"""[^\s{end}'"<>|:,;)\]]*"""
_BARE = re.compile(
    r"(?<![\w/.<~…\\])(?P<start>(?:~[\w.-]*|…|\.{1,2})?/)(?=[^/\s])"
    rf"(?P<folders>(?:{_FOLDER.format(end='/')}/)*)(?P<last>{_LAST.format(end='/')})"
)
_BARE_WINDOWS = re.compile(
    r"(?<![\w\\])(?P<start>[A-Za-z]:[\\/]|\\\\)"
    rf"(?P<folders>(?:{_FOLDER.format(end=chr(92) * 2 + '/')}[\\/])*)(?P<last>{_LAST.format(end=chr(92) * 2 + '/')})"
)


def last_part(path: str | os.PathLike[str]) -> str:
    """`cat.jpg` of `/srv/Client A/cat.jpg`, of this system's paths and of Windows'; a name without folders stays."""
    text = os.fspath(path)
    parts = ntpath if _WINDOWS.match(text) else os.path
    return parts.basename(text.rstrip("/\\" if parts is ntpath else "/")) or text


def without(text: str, *known: str) -> str:
    """`text` with each known path reduced to its last part (`…/cat.jpg`), and the folders that these are in to `…`.

    Paths are found in all the spellings in which messages have them: as they are, as Python, JSON and addresses quote
    them, absolute, and with links followed.
    """
    if known and ("/" in text or "\\" in text):
        found = {place: left for path in known for place, left in _places(path)}
        for place in sorted(found, key=len, reverse=True):
            text = _reduced(text, place, found[place])
    return text


def private(text: str, *known: str) -> str:
    """`text` without the folders of known paths, of this process (home, working, temporary) and of what looks so."""
    if "/" not in text and "\\" not in text:
        return text
    text = without(text, *known)
    for folder, left in _own_folders(*_here()):
        text = _reduced(text, folder, left)
    return searched(text)


def told(error: BaseException, *known: str) -> str:
    """What an exception says, without the folders of the files that it or its causes are of; may be empty.

    Args:
        error: of any kind.
        known: further paths that its message may have.
    """
    return private(str(error).strip(), *known, *_named(error))


def searched(text: str) -> str:
    """`text` with what looks like an absolute path cut down to its last part: `…/cat.jpg`."""
    text = _SCHEME.sub("", text)
    text = _QUOTED.sub(lambda found: f"{found[1]}{_cut(found[2] + found[3])}{found[1]}", text)
    for pattern in (_BARE, _BARE_WINDOWS):
        text = pattern.sub(lambda found: _cut(found[0]), text)
    return text


def _cut(path: str) -> str:
    """A path's last part after `…/`; `~` for a home, `~/x.jpg` for what is in one."""
    home = _HOME.match(path)
    if home is not None:
        path = "~" + path[home.end() :]
    windows = _WINDOWS.match(path) is not None or (home is not None and "\\" in path)
    parts = re.split(r"[\\/]+" if windows else "/+", path)
    folders = [part for part in parts[:-1] if part]
    if folders in ([], ["~"], ["…"]):
        return path  # a file at the root or in a home: no folder's name
    return f"…/{parts[-1]}"


def _named(error: BaseException) -> Iterator[str]:
    """The paths that an exception and its causes carry besides their messages."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # type: ignore[redundant-expr]
        seen.add(id(error))
        for name in ("paths", "path", "filename", "filename2"):
            value = getattr(error, name, None)
            for one in value if isinstance(value, tuple | list) else (value,):
                if isinstance(one, str | bytes | os.PathLike) and one:
                    yield os.fsdecode(one)
        error = error.__cause__ or error.__context__  # type: ignore[assignment]


def _reduced(text: str, place: str, left: str) -> str:
    """`text` with `left` for a path."""
    # Letters and digits stand in every spelling: most paths are told from them not to be there.
    plain = max(_PLAIN.findall(last_part(place)), key=len, default="")
    return _pattern(place, folder=left in ("…", "~")).sub(lambda _: left, text) if plain in text else text


@lru_cache(maxsize=1024)
def _places(path: str) -> tuple[tuple[str, str], ...]:
    """A known path, from the root and with links followed too, and the folders that it is in; what is left of each."""
    found: dict[str, str] = {}
    for place in dict.fromkeys([path, *_from_root(path)]):
        parts = ntpath if _WINDOWS.match(place) else os.path
        folder = parts.dirname(place.rstrip("/"))
        if not folder.strip("/\\"):
            continue  # no folder at all
        found[place] = "…" if os.path.isdir(place) else f"…/{last_part(place)}"  # noqa: PTH112 - any string
        # A folder at the root says nothing of anybody, and the name of one alone may be any word.
        while (above := parts.dirname(folder)) not in ("", "/", "\\", folder):
            found.setdefault(folder, "…")
            folder = above
    return tuple(found.items())


def _from_root(path: str) -> list[str]:
    if _WINDOWS.match(path) or "\0" in path:
        return []
    try:
        return [os.path.normpath(path), os.path.abspath(path), os.path.realpath(path)]  # noqa: PTH100
    except OSError:  # the working folder is gone
        return [os.path.normpath(path)]


@lru_cache(maxsize=512)
def _pattern(path: str, *, folder: bool) -> re.Pattern[str]:
    """A path as it is and as Python (a text in a text too), JSON, bytes and addresses write it."""
    written = "".join(map(_written, path))
    return re.compile(f"{written}(?![\\w-])" if folder else written)  # not the beginning of another folder's name


@cache
def _written(character: str) -> str:
    """A regular expression of one character of a path, escaped or not."""
    if character.isalnum() and character.isascii():
        return character
    if character == "/":
        return r"\\*/+"
    if character == "\\":
        return r"(?:\\+|%5[cC])"
    code = ord(character)
    raw = character.encode("utf-8", "surrogateescape" if 0xDC80 <= code <= 0xDCFF else "surrogatepass")
    ways = [rf"\\*{re.escape(character)}", "".join(f"%{byte:02x}" for byte in raw)]
    if not (character.isascii() and character.isprintable()):
        pair = character.encode("utf-16-be", "surrogatepass").hex()  # as JSON writes it
        ways += [rf"\\+x{code:02x}", rf"\\+u{code:04x}", rf"\\+u{code:08x}"]
        ways += ["".join(rf"\\+u{pair[at : at + 4]}" for at in range(0, len(pair), 4))]
        ways += ["".join(rf"\\+x{byte:02x}" for byte in raw), "\ufffd+", r"\?"]
        ways += [rf"\\+{short}" for short, meant in zip("nrtbf", "\n\r\t\b\f", strict=True) if character == meant]
    return f"(?i:{'|'.join(ways)})"


@lru_cache(maxsize=1)
def _fixed_folders() -> tuple[str, ...]:
    return (sys.prefix, sys.base_prefix, tempfile.gettempdir(), *filter(os.path.isabs, sys.path))


def _here() -> tuple[str, str]:
    """The home and the working folder; empty where there is none."""
    home = os.path.expanduser("~")  # noqa: PTH111 - stays as it is where there is none
    try:
        return home, os.getcwd()  # noqa: PTH109 - a string
    except OSError:  # it is gone
        return home, ""


@lru_cache(maxsize=4)
def _own_folders(home: str, working: str) -> list[tuple[str, str]]:
    """Folders of this process, the longest first, and what stands for them; none that is at the root."""
    found = dict.fromkeys((working, *_fixed_folders()), "…") | {home: "~"}
    own = [one for one in found.items() if one[0].count("/") + one[0].count("\\") > 1]
    return sorted(own, key=lambda one: -len(one[0]))
