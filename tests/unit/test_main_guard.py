"""Whether a new worker would run the user's script again, asked by real scripts in real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernel_monitor.loaders.engines import main_guard

# Loaded by its path: the package would import torch.
ASK = f"""
import importlib.util, multiprocessing, sys, threading
spec = importlib.util.spec_from_file_location("main_guard", {main_guard.__file__!r})
main_guard = importlib.util.module_from_spec(spec)
spec.loader.exec_module(main_guard)
def ask():
    print("unguarded" if main_guard.unguarded() else "guarded")
"""

SCRIPTS = {
    "bare": ("ask()", "unguarded"),
    "in a loop": ("for epoch in range(1):\n    if epoch == 0:\n        ask()", "unguarded"),
    "in a with": ("with open(__file__):\n    ask()", "unguarded"),
    "in a function": ("def main():\n    ask()\nmain()", "unguarded"),
    "beside a guard": ("ask()\nif __name__ == '__main__':\n    pass", "unguarded"),
    "after a guard": ("if __name__ == '__main__':\n    pass\nask()", "unguarded"),
    "in the else of a guard": ("if __name__ != '__main__':\n    pass\nelse:\n    ask()", "guarded"),
    "in the body of the opposite": ("if __name__ != 'x':\n    ask()", "unguarded"),
    "guarded": ("if __name__ == '__main__':\n    ask()", "guarded"),
    "on one line": ("if __name__ == '__main__': ask()", "guarded"),
    "the other way round": ("if '__main__' == __name__:\n    ask()", "guarded"),
    "among several names": ("if __name__ in ('__main__', 'x'):\n    ask()", "guarded"),
    "and more": ("if __name__ == '__main__' and len(sys.argv) < 9:\n    ask()", "guarded"),
    "or more": ("if __name__ == '__main__' or len(sys.argv) < 9:\n    ask()", "unguarded"),
    "not": ("if not __name__ == '__main__':\n    pass\nelse:\n    ask()", "guarded"),
    "another test": ("if len(sys.argv) < 9:\n    ask()", "unguarded"),
    "deep inside": (
        "def main(): ask()\ntry:\n    if __name__ == '__main__':\n        for _ in (1,): main()\nfinally:\n    pass",
        "guarded",
    ),
    "match": ("match __name__:\n    case '__main__':\n        ask()", "guarded"),
    "match all": ("match __name__:\n    case _:\n        ask()", "unguarded"),
    "over several lines": ("if __name__ == '__main__':\n    (\n        ask\n    )(\n    )", "guarded"),
    "by a thread": ("t = threading.Thread(target=ask)\nt.start()\nt.join()", "unguarded"),
    "by a thread, guarded": (
        "if __name__ == '__main__':\n    t = threading.Thread(target=ask)\n    t.start()\n    t.join()",
        "guarded",
    ),
    "by exec": ("exec('if True:\\n\\n\\n\\n\\n    ask()')", "unguarded"),
    "edited so that it cannot be read": ("open(__file__, 'w').write('if (')\nask()", "unguarded"),
    "gone": ("__import__('os').remove(__file__)\nask()", "unguarded"),
}


def run(*command: str, text: str = "", cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *command], input=text, capture_output=True, text=True, timeout=60, check=False, cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(tmp_path: Path, name: str) -> None:
    body, expected = SCRIPTS[name]
    script = tmp_path / "train.py"
    script.write_text(ASK + body + "\n")
    assert run(str(script)) == expected


def test_modules_and_folders(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "bare.py").write_text(ASK + "ask()")
    (package / "guarded.py").write_text(ASK + "if __name__ == '__main__':\n    ask()")
    (package / "__main__.py").write_text(ASK + "ask()")
    assert run("-m", "package.bare", cwd=tmp_path) == "unguarded"
    assert run("-m", "package.guarded", cwd=tmp_path) == "guarded"
    assert run("-m", "package", cwd=tmp_path) == "guarded"  # multiprocessing never imports a __main__.py
    assert run("package", cwd=tmp_path) == "guarded"


def test_what_is_no_file(tmp_path: Path) -> None:
    assert run("-c", ASK + "ask()") == "guarded"
    assert run("-", text=ASK + "ask()") == "unguarded"  # but a new process would look for a file of that name
    script = tmp_path / "train.py"
    script.write_text(ASK)
    assert run("-i", str(script), text="ask()\n") == "guarded"


def test_started_by_another_program(tmp_path: Path) -> None:
    """Debuggers run the script in a `__main__` of their own making."""
    for name, body, expected in (("bare", "ask()", "unguarded"), ("guarded", SCRIPTS["guarded"][0], "guarded")):
        script = tmp_path / f"{name}.py"
        script.write_text(ASK + body)
        assert run("-c", f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')") == expected


@pytest.mark.parametrize(("last", "expected"), [("SIZE = 3", "guarded"), ("x = sorted([1])", "unguarded")])
def test_a_script_that_has_ended(tmp_path: Path, last: str, expected: str) -> None:
    """A program that goes on in its thread, or is embedded, and has not forgotten which file `__main__` was."""
    script = tmp_path / "train.py"
    script.write_text(f"def late():\n    print()\n{last}\nif __name__ == '__main__':\n    late()\n")
    assert run("-c", f"{ASK}\nsys.modules['__main__'].__file__ = {str(script)!r}\nask()") == expected
