"""Privacy of paths, keys and other machines: what recordings and reports must not hold of them."""

from __future__ import annotations

import ntpath
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

from .own_files import temporary, working_folder

T = TypeVar("T")

# ---- Privacy of paths: recordings and reports contain the names of files, but not of their folders.

_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_PLAIN = re.compile(r"[A-Za-z0-9]+")
_SCHEME = re.compile(r"\bfile:/{2}(?=/)")
# A home folder has its owner's name; it is replaced by `~`.
_HOME = re.compile(r"(?:/home|/Users|/export/home|[A-Za-z]:[\\/]Users)[\\/]([^\\/]+)")
# Quoted, as Python writes names: up to the closing quote, which no letter follows.
_QUOTED = re.compile(r"""(["'`])((?:~[\w.-]*|…|\.{1,2})?/|[A-Za-z]:[\\/]|\\\\)((?:\\.|(?!\1(?!\w))[^\n])*)\1(?!\w)""")
# Unquoted, a folder's name may contain spaces, colons and commas, but ends before what looks like a file's suffix
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
    """Return the last part of a path of this system or of Windows: `cat.jpg` of `/srv/Client A/cat.jpg`."""
    text = os.fspath(path)
    parts = ntpath if _WINDOWS.match(text) else os.path
    return parts.basename(text.rstrip("/\\" if parts is ntpath else "/")) or text


def without_known(text: str, *known: str) -> str:
    """Return `text` with each known path replaced by its last part (`…/cat.jpg`), and their folders by `…`.

    Paths are found as they are, as Python, JSON and URLs quote them, absolute, and with links followed.
    """
    if known and ("/" in text or "\\" in text):
        found = dict(pair for path in known for pair in _places(path))
        for place in sorted(found, key=len, reverse=True):
            text = _reduced(text, place, found[place])
    return text


def private(text: str, *known: str) -> str:
    """Return `text` without keys, and without the folders of known paths, of this process, of what looks like one."""
    text = without_secrets(text)
    if "/" not in text and "\\" not in text:
        return text
    text = without_known(text, *known)
    for folder, short in _own_folders(*_here()):
        text = _reduced(text, folder, short)
    return without_paths(text)


def error_text(error: BaseException, *known: str) -> str:
    """Return an exception's message without folders and keys; may be empty.

    Paths in its attributes and in those of its causes are known, and those in `known`.
    """
    return private(str(error).strip(), *known, *_named(error))


def without_paths(text: str) -> str:
    """Return `text` with everything that looks like an absolute path replaced by its last part: `…/cat.jpg`."""
    text = _SCHEME.sub("", text)
    text = _QUOTED.sub(lambda found: f"{found[1]}{_cut(found[2] + found[3])}{found[1]}", text)
    for pattern in (_BARE, _BARE_WINDOWS):
        text = pattern.sub(lambda found: _cut(found[0]), text)
    return text


def _cut(path: str) -> str:
    """Return a path shortened to `…/` and its last part; `~` for a home, `~/x.jpg` for a file in one."""
    home = _HOME.match(path)
    if home is not None:
        path = "~" + path[home.end() :]
    windows = _WINDOWS.match(path) is not None or (home is not None and "\\" in path)
    parts = re.split(r"[\\/]+" if windows else "/+", path)
    folders = [part for part in parts[:-1] if part]
    if folders in ([], ["~"], ["…"]):
        return path  # at the root or in a home: no folder is named
    return f"…/{parts[-1]}"


def _named(error: BaseException) -> Iterator[str]:
    """Yield the paths in the attributes of an exception and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # type: ignore[redundant-expr]
        seen.add(id(error))
        for name in ("paths", "path", "filename", "filename2"):
            value = getattr(error, name, None)
            for path in value if isinstance(value, tuple | list) else (value,):
                if isinstance(path, str | bytes | os.PathLike) and path:
                    yield os.fsdecode(path)
        error = error.__cause__ or error.__context__  # type: ignore[assignment]


def _reduced(text: str, place: str, short: str) -> str:
    """Return `text` with `short` in place of a path."""
    # Letters and digits are the same in every spelling: a quick check that most paths are not in the text.
    plain = max(_PLAIN.findall(last_part(place)), key=len, default="")
    return _path_pattern(place, folder=short in ("…", "~")).sub(lambda _: short, text) if plain in text else text


@lru_cache(maxsize=1024)
def _places(path: str) -> tuple[tuple[str, str], ...]:
    """Return a path in its absolute and resolved forms, and its folders, each with its replacement."""
    found: dict[str, str] = {}
    for place in dict.fromkeys([path, *_from_root(path)]):
        parts = ntpath if _WINDOWS.match(place) else os.path
        folder = parts.dirname(place.rstrip("/"))
        if not folder.strip("/\\"):
            continue  # no folder at all
        found[place] = "…" if os.path.isdir(place) else f"…/{last_part(place)}"  # noqa: PTH112 - any string
        # Folders at the root are not private, and their names may be any word.
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
def _path_pattern(path: str, *, folder: bool) -> re.Pattern[str]:
    """Return a pattern for a path in all spellings: plain, and as Python, JSON, bytes and URLs write it."""
    written = "".join(map(_written, path))
    return re.compile(f"{written}(?![\\w-])" if folder else written)  # not a prefix of another folder's name


@cache
def _written(character: str) -> str:
    """Return a pattern for one character of a path, escaped or not."""
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
        pair = character.encode("utf-16-be", "surrogatepass").hex()  # in JSON
        ways += [rf"\\+x{code:02x}", rf"\\+u{code:04x}", rf"\\+u{code:08x}"]
        ways += ["".join(rf"\\+u{pair[at : at + 4]}" for at in range(0, len(pair), 4))]
        ways += ["".join(rf"\\+x{byte:02x}" for byte in raw), "\ufffd+", r"\?"]
        ways += [rf"\\+{short}" for short, meant in zip("nrtbf", "\n\r\t\b\f", strict=True) if character == meant]
    return f"(?i:{'|'.join(ways)})"


def _here() -> tuple[str, str]:
    """Return the home and the working folder; empty if there is none."""
    home = os.path.expanduser("~")  # noqa: PTH111, TID251 - unchanged if there is none
    return home, working_folder()


@lru_cache(maxsize=4)
def _own_folders(home: str, working: str) -> list[tuple[str, str]]:
    """Return the folders of this process with their replacements, longest first, without those at the root."""
    fixed = [sys.prefix, sys.base_prefix, *filter(os.path.isabs, sys.path)]
    with suppress(FileNotFoundError):
        fixed.append(str(temporary()))
    found = dict.fromkeys((working, *fixed), "…") | {home: "~"}
    own = [pair for pair in found.items() if pair[0].count("/") + pair[0].count("\\") > 1]
    return sorted(own, key=lambda pair: -len(pair[0]))


# ---- Privacy of keys: an exception's text may quote a command line, an address or a request with a key in it.

HIDDEN = "[hidden]"
_SHORTEST = 8  # characters of a key that is looked for
_KEY_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)S?(?:_|$)", re.IGNORECASE)
_OF_KEY = "(?:access|account|api|auth|license|private|secret)"
_KEY_NAME = f"(?:{_OF_KEY}[_-]?key|token|secret|password|passwd|passphrase|credentials?)"
# `--api-key VALUE`, `API_KEY=VALUE`, `"api_key": "VALUE1"`: the value after a colon has a digit, as it may be prose.
# Counts are bounded, and a name begins where a word begins, so that the time is linear in the text's length.
_ASSIGNED = re.compile(
    rf"""(?P<name>(?<![\w.-])(?P<option>--)?[\w.-]{{0,60}}?{_KEY_NAME}(?:[_-][a-z]{{1,12}}){{0,2}}["']?
    (?:\s{{0,3}}=\s{{0,3}}["']?|\s{{0,3}}:\s{{0,3}}["']?(?=[^\s"',;&]{{0,60}}\d)|(?(option)\s{{1,3}}|(?!))))
    (?!\[hidden)[^\s"',;&)\]}}]{{6,}}""",
    re.IGNORECASE | re.VERBOSE,
)
_BEARER = re.compile(r"\b(?P<name>(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(?P<name>://)[^\s/@'\"]+@")  # user and password
# As services mark their keys: OpenAI, Hugging Face, GitHub, GitLab, AWS, Google, Slack; and a JSON web token.
_MARKED = re.compile(
    r"(?<![\w-])(?P<name>)(?:(?:sk-|hf_|gh[oprsu]_|github_pat_|glpat-|xox[abprs]-)[\w-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)


def without_secrets(text: str) -> str:
    """Return `text` with keys, tokens and passwords replaced by `[hidden]`.

    They are found as values of environment variables that are called so, after names that are called so, in addresses
    and in HTTP's headers, and by the marks of well-known services. A key that is none of these is not found.
    """
    if len(text) < 2 * _SHORTEST and (len(text) < _SHORTEST or not any(map(str.isdigit, text))):
        known: list[str] = []  # the usual case, a name or a word: shorter than any of the environment's
    else:
        known = _key_values()
    for value in known:
        text = text.replace(value, HIDDEN)
    if len(text) < _SHORTEST or text.isalnum():
        return text
    for pattern in (_BEARER, _IN_ADDRESS, _MARKED, _ASSIGNED):
        text = pattern.sub(lambda found: f"{found['name']}{HIDDEN}{'@' if found[0][-1] == '@' else ''}", text)
    return text


def without_secrets_in(value: T) -> T:
    """Return nested lists and dicts with `without_secrets` of every text."""
    return _each_text(value, without_secrets)


def private_in(value: T) -> T:
    """Return nested lists and dicts with `private` of every text."""
    return _each_text(value, private)


def _each_text(value: T, change: Callable[[str], str]) -> T:
    found: Any = value
    if isinstance(value, str):
        found = change(value)
    elif isinstance(value, list | tuple):
        found = [_each_text(entry, change) for entry in value]
    elif isinstance(value, Mapping):
        found = {key: _each_text(entry, change) for key, entry in value.items()}
    result: T = found
    return result


def _key_values() -> list[str]:
    """Return the keys in this process's environment, as they are and as a URL quotes them, longest first.

    Short words are none, and neither are files: `torchvision` as a password must not rename an engine.
    """
    found: set[str] = set()
    for name in os.environ:
        if _KEY_VARIABLE.search(name) is None:
            continue
        value = os.environ.get(name, "").strip()
        long = len(value) >= 2 * _SHORTEST or (len(value) >= _SHORTEST and any(map(str.isdigit, value)))
        if long and not os.path.exists(value):  # noqa: PTH110 - any string
            found |= {value, quote(value, safe="")}
    return sorted(found, key=len, reverse=True)


# ---- Privacy of other machines: exports and recordings have the ids of nodes (`node-1`) in place of their names.

FEWEST = 3  # characters of a name that is replaced

_STRUCTURAL = frozenset(
    {"action", "backend", "best", "currency", "engine", "kind", "loader", "path", "source", "target"}
)
"""The keys whose texts stay: a host that is called `torchvision` must not rename an engine."""
_NAMING = frozenset({"id", "name"})
"""The keys of whole names: of a machine, which is replaced, or of something else, of which no part is."""


def own_name() -> dict[str, str]:
    """Return this machine's name with its pseudonym; empty if the name is a mere word, which may mean anything."""
    name = platform.node().partition(".")[0]
    return {name: "this-machine"} if re.search(r"[\d_-]", name) else {}


def pseudonymous(value: T, names: Mapping[str, str]) -> T:
    """Return nested lists and dicts with each of `names` replaced by its pseudonym in every text.

    Names of one or two characters, and mere numbers, stay: they stand in texts for anything.
    """
    known = {name.lower(): new for name, new in names.items() if len(name) >= FEWEST and not name.isdecimal()}
    if not known:
        return value
    pattern = _name_pattern(tuple(sorted(known, key=len, reverse=True)))
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
        kept = {key for key in _NAMING if isinstance(value.get(key), str) and not pattern.fullmatch(value[key])}
        kept |= _STRUCTURAL
        return {key: entry if key in kept else _replaced(entry, pattern, names) for key, entry in value.items()}
    return value


@lru_cache(maxsize=8)
def _name_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for any of these names, the longest first, with or without a domain; case does not count."""
    words = "|".join(re.escape(name) for name in names)
    return re.compile(rf"(?<![\w-])(?<!\w\.)(?P<name>{words})(?![\w-]|\.\d)(?:\.[a-z][\w-]*)*", re.IGNORECASE)
