"""Forks children of a training whose loader has changed its engines; prints, as JSON, how each of them ended.

`python forking_children.py FOLDER wrapped|attached`; FOLDER has images. The children of an engine run at the same time.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from kernel_monitor import monitor, switchable

ENGINES = ["dali-cpu", "threads", "synthetic", "torchvision"]
ALL_KINDS = "dali-cpu"  # the engine on which each kind of child is forked; on the others, the one that failed
PATIENCE_S = 120.0


class FellOff(BaseException):
    """Leads a child to the end of the script."""


def exits(status: int) -> Callable[[Any], None]:
    def end(_: Any) -> None:
        sys.exit(status)

    return end


def raises(_: Any) -> None:
    raise RuntimeError("the child's own")


def falls_off(_: Any) -> None:
    raise FellOff


def is_terminated(_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def handles_sigterm(_: Any) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_S)


def iterates(loader: Any) -> None:
    assert sum(len(targets) for _, targets in loader) == len(loader.dataset)
    numbers: Any = list(range(40))
    assert sum(len(batch) for batch in DataLoader(numbers, 4, num_workers=1)) == 40


def forks(_: Any) -> None:
    child = os.fork()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 5)


CHILDREN: dict[str, tuple[Callable[[Any], None], int]] = {
    "exit 0": (exits(0), 0),
    "exit 3": (exits(3), 3),
    "_exit": (lambda _: os._exit(0), 0),
    "exception": (raises, 1),
    "end of the script": (falls_off, 0),
    "SIGTERM": (is_terminated, -signal.SIGTERM),
    "handler of SIGTERM": (handles_sigterm, 7),
    "iterates": (iterates, 0),
    "grandchild": (forks, 5),
}


def square(number: int) -> int:
    return number * number


def status(pid: int) -> int | str:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found, ended = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(ended)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "waits"


def children(loader: Any, names: list[str]) -> dict[str, list[int | str]]:
    """Return how the children ended that did not end as they would without kernel_monitor."""
    sys.stdout.flush()
    started = []
    for name in names:
        end, expected = CHILDREN[name]
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            end(loader)
            sys.exit(0)
        started.append((name, pid, expected))
    wrong: dict[str, list[int | str]] = {}
    for name, pid, expected in started:
        found = status(pid)
        if found != expected:
            wrong.setdefault(name, []).append(found)
    return wrong


def pools() -> None:
    fork: Any = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=fork) as pool:
        assert list(pool.map(square, range(4), timeout=PATIENCE_S)) == [0, 1, 4, 9]
    with fork.Pool(2) as others:
        assert others.map_async(square, range(4)).get(PATIENCE_S) == [0, 1, 4, 9]
    process = fork.Process(target=square, args=(3,))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0


def switch(loader: Any, engine: str) -> dict[str, list[int | str]]:
    """Return how the children ended that were forked while the engine was made, if not as they should."""
    wrong: dict[str, list[int | str]] = {}
    end = time.monotonic() + PATIENCE_S
    monitor.switch(engine, confirmed=True)
    while True:
        for _ in loader:
            time.sleep(0.001)
        if engine == ALL_KINDS:  # which is the first one: DALI is being imported meanwhile
            wrong |= children(loader, ["exit 0", "iterates"])
        state = monitor.loader_states()[0]
        if state["backend"] == engine and state["wanted"] is None:
            return {f"{name}, while it is made": found for name, found in wrong.items()}
        assert time.monotonic() < end, state["status"]


def main(folder: str, kind: str) -> None:
    dataset = ImageFolder(folder, transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()]))
    loader: Any = DataLoader(dataset, 8, num_workers=0)
    if kind == "wrapped":
        loader = switchable(loader)
    monitor.start(record=False)
    next(iter(loader))
    for engine in ENGINES:
        early = switch(loader, engine)
        batches = iter(loader)
        first = len(next(batches)[1])
        wrong = early | children(loader, [*CHILDREN] if engine == ALL_KINDS else ["exit 0"])
        samples = first + sum(len(targets) for _, targets in batches)
        if engine == ALL_KINDS:
            pools()
            between = children(loader, ["exit 0", "iterates"])
            wrong |= {f"{name}, between epochs": found for name, found in between.items()}
        print(json.dumps({"engine": engine, "wrong": wrong, "samples": samples}), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(FellOff):
        main(*sys.argv[1:])
