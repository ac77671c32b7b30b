"""Checks and waits that tests of several packages share."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Value = TypeVar("Value")


def not_none(value: Value | None) -> Value:
    """Return the value, which is there."""
    assert value is not None
    return value


def contains(text: str, *parts: str) -> None:
    """Check that a text contains every one of these parts."""
    for part in parts:
        assert part in text, f"{part!r} is not in {text!r}"


def wait_for(condition: Callable[[], object], seconds: float = 30.0, every: float = 0.01) -> None:
    """Return when a condition holds; fail when it does not in time."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"it did not come about in {seconds:g} s"
        time.sleep(every)


@contextmanager
def threads(*targets: Callable[[], object]) -> Iterator[list[threading.Thread]]:
    """Call each target on a thread of its own meanwhile, and join the threads at the end."""
    made = [threading.Thread(target=target) for target in targets]
    for thread in made:
        thread.start()
    try:
        yield made
    finally:
        for thread in made:
            thread.join()


def loaded_by(code: str, *modules: str) -> list[str]:
    """Return which of these modules a fresh Python has imported after it ran some code."""
    code += f"\nimport sys; print([name for name in {modules} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return list(ast.literal_eval(done.stdout))
