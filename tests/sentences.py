"""Writes `tests/unit/sentences.txt`: every sentence that the product can say to a user, to be read as a whole.

python -m tests.sentences

A string counts as prose if it holds at least two words beside its fields, and no code, CSS, SQL or HTML. Fields are in
braces, by the last name in their expression. Docstrings, comments, regular expressions and messages of `assert` are
left out.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "unit" / "sentences.txt"
HEAD = (
    "# Every sentence that the product can say. Written by `make sentences`; a test compares. `{…}` is a field.\n"
    "# Read it from time to time: is each understood without the line before?\n"
)

WORD = re.compile(r"[A-Za-z’'-]{2,}")
FIELD = re.compile(r"\{[^{}]*\}")
CODE = re.compile(
    r"\\[a-zA-Z.\[(]|_src\b|-src |^\s*[<@#./-]|</|\b(km|jp|lm)-|;\s*$|^(M|m)[\d{]|=>|\(\?[:!=P]|^\(?\w+: [\w.]+;"
    r"|^(SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|ALTER|DROP|BEGIN|ORDER BY|WHERE)\b| WHERE |^id, "
    r"|^(import \w+$|import \w+ as|from [\w.]+ import|def |class \w+[:(]|const |var |return )"
    r"|^\d+px|\bsans-serif\b|, *sans|^(translate|rgba?|rotate|repeat|minmax|matrix|hsl)\(|:has\(|^\(prefers-"
    r"|^[a-z-]+: [\w(-]+$|^[\w.]+\(.*\)$|^[a-z_]+=\""
)
TOKEN = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)"
    r"|(?P<regex>(?<=[(,=:\[!&|?{};\n])\s*/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+/[a-z]*)"
    r"|'(?P<single>(?:\\.|[^'\\\n])*)'|\"(?P<double>(?:\\.|[^\"\\\n])*)\"|(?P<template>`)",
    re.DOTALL,
)
SERIES = re.compile(r"/\{\}/|:\w+[?\[{]|:(string|number|unknown|boolean)|^km\w+\{\}")  # a key, a field of a message
GENERATED = re.compile(r"kernel_monitor/(static|labextension)/|__pycache__|widgets/src/stream/protocol\.ts")


def is_prose(text: str) -> bool:
    """Whether a literal is for people: by its words, as nothing else tells it from a key."""
    if CODE.search(text):
        return False
    parts = FIELD.sub("{}", text).split()
    words = [part for part in parts if WORD.search(part) and not SERIES.search(part)]
    return len(words) >= 2 or (len(words) == 1 and any("{}" in part for part in parts if part not in words))


def in_one_line(text: str) -> str:
    return " ".join(text.split())


# ---- Python


def _field(node: ast.expr) -> str:
    """The last name in an expression: `{rate:,.0f}` and `{self.rate}` are both `rate`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        return _field(node.args[0]) if node.args and isinstance(node.func, ast.Name) else _field(node.func)
    if isinstance(node, ast.BinOp):
        left = _field(node.left)
        return left if left != "…" else _field(node.right)
    if isinstance(node, ast.UnaryOp):
        return _field(node.operand)
    if isinstance(node, ast.Subscript):
        key = node.slice
        return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else _field(node.value)
    return "…"


class Literals(ast.NodeVisitor):
    """Collects the literals of a module."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        return

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.found.append(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        parts = []
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                parts.append("{" + _field(value.value) + "}")
                self.visit(value.value)
            elif isinstance(value, ast.Constant):
                parts.append(str(value.value))
        self.found.append("".join(parts))

    def visit_Call(self, node: ast.Call) -> None:
        # What goes to a log for developers, a pattern, a statement of a data base.
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in ("compile", "sub", "search", "match", "fullmatch", "findall", "execute", "debug", "TypeVar"):
            self.generic_visit(node)


def of_python(source: str) -> Iterator[str]:
    """The literals of a module of Python, fields in braces."""
    visitor = Literals()
    visitor.visit(ast.parse(source))
    yield from visitor.found


# ---- TypeScript


def of_typescript(source: str) -> Iterator[str]:
    """The literals of a module of TypeScript, fields in braces."""
    place = 0
    while (token := TOKEN.search(source, place)) is not None:
        place = token.end()
        if token["single"] is not None or token["double"] is not None:
            yield re.sub(r"\\(['\"])", r"\1", token["single"] or token["double"] or "")
        elif token["template"] is not None:
            text, inner, place = _template(source, place)
            yield text
            for code in inner:
                yield from of_typescript(code)


def _template(source: str, place: int) -> tuple[str, list[str], int]:
    """The text of a template literal that began before `place`, the code of its fields, and where it ends."""
    parts, inner = [], []
    while place < len(source) and source[place] != "`":
        if source[place] == "\\":
            parts.append(source[place : place + 2])
            place += 2
        elif source.startswith("${", place):
            begin = place = place + 2
            depth = 1
            while place < len(source) and depth:
                token = TOKEN.match(source, place)
                if token is not None and token["template"] is not None:
                    place = _template(source, token.end())[2]
                elif token is not None and token["regex"] is None:
                    place = token.end()
                else:
                    depth += {"{": 1, "}": -1}.get(source[place], 0)
                    place += 1
            code = source[begin : place - 1]
            names = re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'|`[^`]*`", "", code))
            parts.append("{" + (names[-1] if names else "…") + "}")
            inner.append(code)
        else:
            parts.append(source[place])
            place += 1
    return "".join(parts), inner, place + 1


# ---- templates of the report, settings of JupyterLab


def of_template(source: str) -> Iterator[str]:
    """The texts between the tags of a Jinja template, and its literals."""
    source = re.sub(r"\{#.*?#\}|<(style|script)\b.*?</\1>", "", source, flags=re.DOTALL)
    for code in re.findall(r"\{[%{](.*?)[%}]\}", source, flags=re.DOTALL):
        for single, double in re.findall(r"'((?:\\.|[^'\\])*)'|\"((?:\\.|[^\"\\])*)\"", code):
            yield single or double
    source = re.sub(r"\s*\{%-?.*?%\}", "\n\n", source, flags=re.DOTALL)
    source = re.sub(r"\{\{.*?([A-Za-z_]\w*)[^A-Za-z_]*?\}\}", r"{\1}", source, flags=re.DOTALL)
    for tag in re.findall(r"<[^<>]*>", source, flags=re.DOTALL):
        yield from re.findall(r"(?:aria-label|title)=\"([^\"]*)\"", tag)
    for part in re.split(r"</?(?!(?:code|em|strong|b|i|a|abbr)\b)\w[^<>]*>|\n\s*\n", source):
        yield re.sub(r"<[^<>]*>", "", part)


def of_schema(source: str) -> Iterator[str]:
    """Titles and descriptions of settings."""
    stack = [json.loads(source)]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield from (value[key] for key in ("title", "description") if isinstance(value.get(key), str))
        if isinstance(value, dict | list):
            stack += value.values() if isinstance(value, dict) else value


READERS = (
    ("kernel_monitor", "*.py", of_python),
    ("kernel_monitor/report/templates", "*.html", of_template),
    ("widgets/src", "*.ts", of_typescript),
    ("extension/src", "*.ts*", of_typescript),
    ("extension/schema", "*.json", of_schema),
)


@cache
def sentences() -> dict[str, list[str]]:
    """The sentences of each module, sorted, by its path."""
    found: dict[str, list[str]] = {}
    for folder, pattern, read in READERS:
        for path in sorted((ROOT / folder).rglob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if GENERATED.match(name):
                continue
            said = {in_one_line(text) for text in read(path.read_text(encoding="utf-8")) if is_prose(text)}
            if said:
                found[name] = sorted(said)
    return found


def listed() -> str:
    """The text of the list."""
    parts = [HEAD]
    for name, said in sentences().items():
        parts.append(f"\n## {name}\n" + "".join(f"{text}\n" for text in said))
    return "".join(parts)


if __name__ == "__main__":
    LIST.write_text(listed(), encoding="utf-8")
    print(f"{LIST.relative_to(ROOT)}: {sum(map(len, sentences().values())):,} sentences")
