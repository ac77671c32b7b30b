"""Every sentence that the product can say, as templates: `python -m tests.sentences` writes tests/unit/sentences.txt.

They are the string literals of the Python modules and of the page's TypeScript that hold words; `{rate}` stands for
what is put in. A literal that is joined to others while the program runs is a line of its own. The file is there to be
read as a whole, and so that a change of a sentence is seen in a diff.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "unit" / "sentences.txt"
COMMAND = "make sentences"
FRONT = ("widgets/src", "extension/src")
GENERATED = ("static", "labextension", "stream/protocol.ts")
UNSEEN = {"compile", "debug", "getLogger", "TypeVar", "NewType", "execute", "fullmatch", "sub", "findall", "search"}
"""Calls whose literals nobody reads: patterns, SQL, names."""
_WORDS = re.compile(r"[A-Za-z}%)*»,;:.]['’\"]? +['’\"(«]?[A-Za-z{%\d(]")
_CODE = re.compile(
    r"^\s*[<.#@&]"  # markup, selectors
    r"|[{;]\s*[a-z-]+: ?[^;{}]+;"  # style sheets
    r"|^[MmLlHhVvCcZzAaQq\d\s.,-]+$"  # outlines
    r"|^(?:[a-z]+-[\w-]+|\{\w*\})(?: (?:[a-z]+-[\w-]+|\{\w*\}))*$"  # classes
    r"|=>|\);|\]\)|^\w+\(.*\)$|^[\w-]+: [\w%-]+;?$|^/|\\s|\(\?|%[a-zA-Z]:?%"
    r"|^import |^from \w+ import|\n(?:import|from|def) "
    r"|^[a-z-]+='"
    r"|\b[A-Z]{3,} [\w{},*]+ (?:BY|FROM|WHERE|DESC|SET|INTO)\b|^ORDER BY|^PRAGMA|^layouts WHERE|default-src"  # SQL
    r"|sans-serif|\dpx\b|-gradient|^\(prefers-|prefix_|\bid, "  # style
)


def collect() -> str:
    """The file's text."""
    lines: dict[str, set[str]] = {}
    for path, text in (*_python(), *_front()):
        if _said(text):
            lines.setdefault(path, set()).add(_one_line(text))
    parts = [f"# {path}\n" + "".join(f"{line}\n" for line in sorted(lines[path])) for path in sorted(lines)]
    return "\n".join(parts)


def sentences(text: str) -> list[tuple[str, str]]:
    """(module, sentence) of the file's text."""
    found, module = [], ""
    for line in text.splitlines():
        if line.startswith("# ") and line.endswith((".py", ".ts", ".tsx")):
            module = line[2:]
        elif line:
            found.append((module, line))
    return found


def _said(text: str) -> bool:
    return bool(_WORDS.search(text)) and not _CODE.search(text)


def _one_line(text: str) -> str:
    return text.strip().replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def _python() -> Iterator[tuple[str, str]]:
    package = ROOT / "kernel_monitor"
    for path in sorted(package.rglob("*.py")):
        if path.relative_to(package).parts[0] not in GENERATED:
            name = path.relative_to(ROOT).as_posix()
            for text in _literals(ast.parse(path.read_text(encoding="utf-8"))):
                yield name, text


def _literals(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.Call) and _name(node.func) in UNSEEN:
        return
    if isinstance(node, ast.JoinedStr):
        yield _template(node)
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.arg | ast.AnnAssign) and child is node.annotation):
            yield from _literals(child)


def _template(node: ast.JoinedStr) -> str:
    return "".join(
        f"{{{_name(part.value)}}}" if isinstance(part, ast.FormattedValue) else _name(part) for part in node.values
    )


def _name(node: ast.AST) -> str:
    """The name in an expression that says what stands in its place."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.IfExp):
        return f"{_name(node.body)}|{_name(node.orelse)}"
    if isinstance(node, ast.JoinedStr):
        return _template(node)
    if isinstance(node, ast.Subscript):
        return _name(node.slice) or _name(node.value)
    if isinstance(node, ast.Call):
        return next((name for one in node.args if (name := _name(one))), "") or _name(node.func)
    return next((name for child in ast.iter_child_nodes(node) if re.search("[a-z]", name := _name(child))), "")


def _front() -> Iterator[tuple[str, str]]:
    paths = sorted(path for folder in FRONT for path in (ROOT / folder).rglob("*.ts*"))
    names = [name for path in paths if not (name := path.relative_to(ROOT).as_posix()).endswith(GENERATED)]
    ran = subprocess.run(
        ["node", "tests/sentences.mjs", *names], cwd=ROOT, check=True, capture_output=True, encoding="utf-8", timeout=60
    )
    for name, text in json.loads(ran.stdout):
        yield name, text


if __name__ == "__main__":
    FILE.write_text(collect(), encoding="utf-8")
    print(f"{FILE.relative_to(ROOT)}: {len(sentences(FILE.read_text(encoding='utf-8'))):,} sentences")
