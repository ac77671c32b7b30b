"""Whether a new process would run the user's script again.

A process that multiprocessing starts without a fork imports the script first, under another name than `__main__`, so
that what is defined there can be found. What the script does under `if __name__ == "__main__":` is then left out; a
script without that guard would train once more, in each worker.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterator
from multiprocessing import spawn
from pathlib import Path

RENAMED = "__mp_main__"  # what the script's `__name__` is in the new process


def imported_again() -> Path | None:
    """The file of the script or module that a new process would import as its main one; None where there is none.

    In a notebook and with `python -c` there is none.
    """
    vars(sys.modules["__main__"]).setdefault("__spec__", None)  # multiprocessing reads it, and %reset deletes it
    data = spawn.get_preparation_data("")  # what multiprocessing would send to the process
    name, path = data.get("init_main_from_name"), data.get("init_main_from_path")
    if name is not None:  # python -m; that of a package, or of a folder, is never imported again
        file = getattr(sys.modules["__main__"], "__file__", None)
        return None if name == "__main__" or name.endswith(".__main__") or file is None else Path(file)
    return None if path is None or Path(path).stem == "ipython" else Path(path)


def unguarded() -> Path | None:
    """The user's script, if a new process would run what this one runs now; None where it is guarded or not imported.

    What cannot be read or understood counts as unguarded.
    """
    script = imported_again()
    if script is None:
        return None
    try:
        body = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return script
    line = _running_line(str(script))
    if line is None:  # the script has come to its end: a thread of it goes on
        return None if all(_runs_nothing(statement) for statement in body) else script
    return None if _left_out(body, line) else script


def _running_line(script: str) -> int | None:
    """The line of the script's top level that runs now; None if the script has ended."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    own, line = vars(sys.modules["__main__"]), None
    while frame is not None:  # to the outermost one: the script may have run other code by exec()
        code = frame.f_code
        if frame.f_globals is own and code.co_name == "<module>" and Path(code.co_filename).name == Path(script).name:
            line = frame.f_lineno
        frame = frame.f_back
    return line


def _left_out(body: list[ast.stmt], line: int) -> bool:
    """Whether the new process would skip a line of some statements."""
    for statement in body:
        for block, left_out in _blocks(statement):
            if block and block[0].lineno <= line <= (block[-1].end_lineno or line):
                return left_out or _left_out(block, line)
    return False


def _runs_nothing(statement: ast.stmt) -> bool:
    """Whether a statement only defines things in the new process."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(statement, (ast.If, ast.Match, ast.Try)):
        return all(left_out or all(map(_runs_nothing, block)) for block, left_out in _blocks(statement))
    return not any(isinstance(node, (ast.Call, ast.Await)) for node in ast.walk(statement))


def _blocks(statement: ast.stmt) -> Iterator[tuple[list[ast.stmt], bool]]:
    """The blocks inside a statement, each with whether the new process would skip it."""
    if isinstance(statement, ast.If):
        test = _value(statement.test)
        yield statement.body, test is False
        yield statement.orelse, test is True
    elif isinstance(statement, ast.Match):
        for case in statement.cases:
            wanted = case.pattern.value if isinstance(case.pattern, ast.MatchValue) else None
            yield (
                case.body,
                wanted is not None and _value(ast.Compare(statement.subject, [ast.Eq()], [wanted])) is False,
            )
    else:
        for name in ("body", "orelse", "finalbody"):
            yield getattr(statement, name, []), False
        for handler in getattr(statement, "handlers", []):
            yield handler.body, False


def _value(test: ast.expr) -> bool | None:
    """What a test of `__name__` gives in the new process; None for any other test, and where that is not known."""
    expression = ast.fix_missing_locations(ast.Expression(test))
    if "__name__" not in ast.unparse(test):
        return None
    try:
        # Of all names it knows this one only: what a test takes besides is an error, unless it is not reached.
        return bool(eval(compile(expression, "<test>", "eval"), {"__name__": RENAMED, "__builtins__": {}}))  # noqa: S307
    except Exception:  # noqa: BLE001 - whatever else the test needs
        return None
