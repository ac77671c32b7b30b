"""Runs of the training scripts of `scripts/`, each in a fork of a process that has imported the frameworks."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ..scripts.running import PRELOADED, Forking
from .training import EPOCHS, PHOTOS, Step

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
SWAPS = {4: "dali-cpu", 16: "torchvision", 28: "dali-cpu"}
"""Three clicks: after the fourth step of each of three epochs of twelve steps."""

_SCRIPT = """\
import os, sys
sys.path.insert(0, {root!r})
os.environ.update({environment!r})
from tests.frameworks.monitored_run import main
if __name__ == "__main__":
    main({out!r}, {script!r}, {arguments!r}, {clicks!r}, {options})
"""


def check_parity(trained: Trained, plain: Trained, *, same_images: bool = True) -> None:
    """Assert that a training with clicks got the samples of the plain one in the same order, each once an epoch.

    Args:
        trained: the training with clicks.
        plain: the training without the monitor.
        same_images: whether the losses must agree, too, within what DALI decodes differently; not if transforms are
            random.
    """
    samples = trained.samples()
    assert samples == plain.samples()
    epochs = [sorted(samples[first : first + PHOTOS]) for first in range(0, len(samples), PHOTOS)]
    assert epochs == [list(range(PHOTOS))] * EPOCHS
    if same_images:
        assert trained.losses() == pytest.approx(plain.losses(), rel=0.02, abs=0.005)


@dataclass
class Trained:
    """The result of a training: its steps, and the states of its loaders as the monitor had them."""

    steps: list[Step]
    backends: list[str]  # the engine in use at each training step; empty without the monitor
    loaders: list[dict[str, Any]]  # `name`, `kind`, `state`, `epochs`, `clicks`, `images` of each
    status: str
    err: str

    def of(self, kind: str = "train") -> list[Step]:
        """Return the steps of a kind."""
        return [step for step in self.steps if step.kind == kind]

    def samples(self, kind: str = "train") -> list[int]:
        """Return the numbers of the samples of the steps of a kind, in order."""
        return [number for step in self.of(kind) for number in step.samples]

    def losses(self, kind: str = "train") -> list[float]:
        """Return the losses of the steps of a kind."""
        return [step.loss for step in self.of(kind)]

    def loader(self, name: str) -> dict[str, Any]:
        """Return the loader with a name; there must be exactly one."""
        (found,) = [loader for loader in self.loaders if loader["name"] == name]
        return found


class Trainings:
    """A runner of scripts, in forks of a process that has imported some modules."""

    def __init__(self, folder: Path, *modules: str) -> None:
        self._folder = folder
        self._forking = Forking((*PRELOADED, *modules))
        self._numbers = itertools.count(1)
        self._plain: dict[tuple[object, ...], Trained] = {}

    def pair(self, script: str, *arguments: object, **options: Any) -> tuple[Trained, Trained]:
        """Return the results of a script without the monitor (kept from an earlier call) and with clicks; see `run`."""
        key = (script, *arguments)
        with ThreadPoolExecutor(2) as lanes:
            clicked = lanes.submit(self.run, script, *arguments, **options)
            if key not in self._plain:
                self._plain[key] = self.run(script, *arguments)
            return self._plain[key], clicked.result()

    def run(
        self,
        script: str,
        *arguments: object,
        clicks: Mapping[int, str] | None = None,
        loader: str | None = None,
        kind: str = "train",
        environment: Mapping[str, str] | None = None,
    ) -> Trained:
        """Run a script of `scripts/` to its end, which must be without an error.

        Args:
            script: its name without the ending; it must not name the package.
            arguments: of its command line.
            clicks: the engine to click on, by the number of the step after which to click, from 1. {}: the monitor
                runs without a click. None: the monitor does not run.
            loader: the name of the loader that is clicked on; None for the only one.
            kind: the kind of the steps that are counted.
            environment: more environment variables of the process.
        """
        path = SCRIPTS / f"{script}.py"
        assert "kernel_monitor" not in path.read_text(encoding="utf-8")
        folder = self._folder / f"{next(self._numbers):02d}-{script}"
        folder.mkdir()
        out = folder / "out.json"
        options = "" if clicks is None else f"loader={loader!r}, kind={kind!r}"
        text = _SCRIPT.format(
            root=str(ROOT),
            environment=dict(environment or {}),
            out=str(out),
            script=str(path),
            arguments=[str(argument) for argument in arguments],
            clicks=None if clicks is None else dict(clicks),
            options=options,
        )
        (folder / "script.py").write_text(text, encoding="utf-8")
        ended = self._forking.run(folder)
        assert ended.code == 0, ended.err or ended.out
        read = json.loads(out.read_text(encoding="utf-8"))
        read["steps"] = [Step(*step) for step in read["steps"]]
        return Trained(**read, err=ended.err)

    def run_ranks(self, ranks: int, script: str, *arguments: object, **options: Any) -> list[Trained]:
        """Run a script in `ranks` processes of a process group, as `torchrun` does; return the results by rank."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
        }

        def one(rank: int) -> Trained:
            environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0", "GROUP_RANK": "0"}
            return self.run(script, *arguments, environment=environment, **options)

        with ThreadPoolExecutor(ranks) as lanes:
            return list(lanes.map(one, range(ranks)))

    def close(self) -> None:
        self._forking.close()
