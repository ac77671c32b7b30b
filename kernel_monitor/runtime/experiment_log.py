"""Writes means of the measured figures into the user's run of Weights & Biases, MLflow or TensorBoard.

For each client there is a thread that reads the store with a cursor of its own and calls the client's public functions.
So nothing waits for a client that is slow or that fails: what it could not take becomes part of its next mean. A
failure is a state, never an exception. docs/howto/log.md lists the keys.

wandb and mlflow are never imported here: without the user's own import there is no active run.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from ..analysis.frames import allowed_cores
from ..analysis.segments import switches
from ..analysis.switch_comparison import SwitchComparison
from ..errors import SessionError
from ..own_files import NoPlace, expanded
from ..store import Rows, Store
from ..store.schema import Schema
from ..text import cause, line, quoted

PERIOD_S = 5.0  # between two writes
PREFIX = "kernel_monitor"  # first part of every key
CLIENTS = ("wandb", "mlflow", "tensorboard")
_END_S = 3.0  # how long the end of a session waits for a client
_COMPARISON_S = 30.0  # between two comparisons of the same switches
_COMPARISON_SHARE = 0.01  # of the time, at most, is spent on comparisons: they hold the GIL
_GPU_METRICS = ("utilisation", "memory", "power_draw", "temperature")
_HOST_METRICS = ("memory/percent", "container/cpu", "container/memory_percent")
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_-]+")  # MLflow's rules are the strictest


class ExperimentLogState(TypedDict):
    """The log of one client; `waiting`: for a run to begin; `failed`: it is tried again; `message` is for people."""

    client: str
    state: Literal["waiting", "logging", "failed"]
    run: str | None
    message: str


# ---- Which clients there are.


def targets(wanted: Any) -> tuple[str, ...]:
    """Return the value of `log_to` in its one form, with TensorBoard's folder absolute; empty for none.

    Raises:
        SessionError: no such client, one twice, one that is not installed, or a folder that cannot be one.
    """
    words = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise SessionError(f"log_to is {_choices()}, a list of these, or an empty text for none, not {quoted(wanted)}.")
    found: dict[str, str] = {}
    for word in filter(None, words):
        client, colon, folder = word.partition(":")
        if client not in CLIENTS or (colon and not (folder and client == "tensorboard")):
            raise SessionError(f"log_to is {_choices()}, or tensorboard:FOLDER, not {quoted(word)}.")
        if client in found:
            raise SessionError(f"log_to names {client} twice.")
        if client not in sys.modules and not _installed(client):
            raise SessionError(
                f"log_to={client!r} needs the package {client}, which this environment lacks: pip install {client}."
            )
        if client == "tensorboard":
            _import_tensorboard()
            folder = folder or f"runs/kernel_monitor-{time.strftime('%Y%m%d-%H%M%S')}"
            try:
                folder = str(expanded(folder))
            except NoPlace as error:
                raise SessionError(f"There is no folder for TensorBoard: {error}") from None
        found[client] = f"{client}:{folder}" if folder else client
    return tuple(found.values())


def _installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # wandb's own folder in the working directory has none


def _choices() -> str:
    return f"{', '.join(CLIENTS[:-1])} or {CLIENTS[-1]}"


def _import_tensorboard() -> None:
    """Import it on the caller's thread, so that no import stops a loop later; SessionError if that fails."""
    try:
        importlib.import_module("torch.utils.tensorboard")
    except Exception as error:  # of the client's own: an ImportError, or that of an unfitting version
        raise SessionError(f"torch.utils.tensorboard cannot be imported: {cause(error)}.") from error


class Client(Protocol):
    """The active run of one client, as the thread of `_ClientLog` uses it."""

    waits_for: str  # a sentence: what there must be

    def find_run(self) -> str | None:
        """Return the active run's name, no other run's, which the next calls are about; None if there is none."""

    def overwrites(self) -> bool:
        """Return whether figures that are written now take the place of those written last."""

    def write(self, values: Mapping[str, float], at: float, wall: float, /) -> None:
        """Write figures of session time `at` (s) and wall clock `wall` (Unix s)."""

    def describe(self, texts: Mapping[str, str], figures: Mapping[str, float], at: float, wall: float, /) -> None:
        """Write texts and figures of the whole run, over those before."""

    def close(self) -> None:
        """Write out what is buffered, and forget the run."""


class _Wandb:
    """Weights & Biases: the figures join the row of the run's history that is open.

    They never commit a row, and so leave the run's step as the user counts it: wandb drops what is logged with a step
    that is smaller than the run's.
    """

    waits_for = "no run is active; wandb.init() begins one"

    def __init__(self) -> None:
        self._run: Any = None
        self._step: int | None = None  # of the row with the figures written last

    def find_run(self) -> str | None:
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is not self._run:
            self._run, self._step = run, None
        return None if run is None else line(f"{run.name} ({run.id})" if run.name else str(run.id))

    def overwrites(self) -> bool:
        return self._step is not None and self._run.step == self._step

    def write(self, values: Mapping[str, float], _at: float, _wall: float, /) -> None:
        self._run.log(dict(values), commit=False)
        self._step = self._run.step

    def describe(self, texts: Mapping[str, str], figures: Mapping[str, float], _at: float, _wall: float, /) -> None:
        self._run.summary.update({**texts, **figures})

    def close(self) -> None:
        self._run = self._step = None


class _Mlflow:
    """MLflow: the newest active run of the fluent interface, in whichever thread it was started."""

    waits_for = "no run is active; mlflow.start_run() begins one"

    def __init__(self) -> None:
        self._id: str | None = None

    def find_run(self) -> str | None:
        mlflow = sys.modules.get("mlflow")
        if mlflow is None or not hasattr(mlflow, "active_run"):  # not imported, or being imported
            return None
        fluent = sys.modules.get("mlflow.tracking.fluent")
        # `active_run` is of the calling thread only, since MLflow has runs for each thread.
        run = getattr(fluent, "_get_latest_active_run", mlflow.active_run)()
        self._id = None if run is None else str(run.info.run_id)
        return None if run is None else line(f"{run.info.run_name} ({self._id})")

    def overwrites(self) -> bool:
        return False

    def write(self, values: Mapping[str, float], at: float, wall: float, /) -> None:
        self._batch(values, {}, at, wall)

    def describe(self, texts: Mapping[str, str], figures: Mapping[str, float], at: float, wall: float, /) -> None:
        self._batch(figures, texts, at, wall)

    def _batch(self, values: Mapping[str, float], texts: Mapping[str, str], at: float, wall: float) -> None:
        mlflow: Any = sys.modules["mlflow"]
        entities = mlflow.entities
        metrics = [entities.Metric(key, value, int(1000 * wall), round(at)) for key, value in values.items()]
        tags = [entities.RunTag(key, text) for key, text in texts.items()]
        mlflow.MlflowClient().log_batch(self._id, metrics=metrics, tags=tags)

    def close(self) -> None:
        self._id = None


class _Tensorboard:
    """TensorBoard: a file of our own in a folder, which is the user's run if it is the folder of their writer."""

    waits_for = ""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._writer: Any = None

    def find_run(self) -> str:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self._folder, filename_suffix=".kernel_monitor")
        return self._folder

    def overwrites(self) -> bool:
        return False

    def write(self, values: Mapping[str, float], at: float, wall: float, /) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, round(at), walltime=wall)
        self._writer.flush()

    def describe(self, texts: Mapping[str, str], figures: Mapping[str, float], at: float, wall: float, /) -> None:
        for key, text in texts.items():
            self._writer.add_text(key, text, round(at), walltime=wall)
        self.write(figures, at, wall)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _client(target: str) -> Client:
    name, _, folder = target.partition(":")
    return _Tensorboard(folder) if name == "tensorboard" else _Wandb() if name == "wandb" else _Mlflow()


# ---- What is written.


class _Means:
    """Means of series and of steps over a time whose end is open."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def clear(self) -> None:
        self._sums.clear()

    def add(self, rows: Rows, steps: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take further rows into the means, and the `STEP`[n] of each loader (its id). NaN counts as not measured."""
        for key, columns in _columns(rows.schema).items():
            self._add(key, rows.values[:, columns])
        for loader in rows.schema.loaders:
            for part in ("wait", "step"):
                if loader.id in steps:
                    self._add(f"{_loader_key(loader.name)}/{part}", 1e3 * steps[loader.id][part].astype(np.float64))

    def _add(self, key: str, values: npt.NDArray[Any]) -> None:
        known = values[np.isfinite(values)].astype(np.float64)
        total, count = self._sums.get(key, (0.0, 0))
        self._sums[key] = total + float(known.sum()), count + len(known)

    def values(self) -> dict[str, float]:
        return {f"{PREFIX}/{key}": total / count for key, (total, count) in self._sums.items() if count}


def _columns(schema: Schema) -> dict[str, list[int]]:
    """Return the columns of each key."""
    series = {"cpu/busy": [f"cpu/{core}/busy" for core in sorted(allowed_cores(schema))]}
    series |= {name: [name] for name in _HOST_METRICS}
    series |= {name: [name] for gpu in schema.gpus for part in _GPU_METRICS for name in [f"gpu/{gpu.index}/{part}"]}
    # Of several loaders with one name, as of a cell that was run again, the newest.
    series |= {f"{_loader_key(loader.name)}/images": [f"loader/{loader.id}/images"] for loader in schema.loaders}
    found = {key: [schema.columns[name] for name in names if name in schema.columns] for key, names in series.items()}
    return {key: columns for key, columns in found.items() if columns}


def _loader_key(name: str) -> str:
    return f"loader/{_NOT_IN_KEYS.sub('_', name) or '_'}"


def engine_texts(states: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the engine in use of each loader of these states."""
    return {f"{PREFIX}/{_loader_key(state['name'])}/engine": str(state["backend"]) for state in states}


def switch_counts(states: Sequence[Mapping[str, Any]], events: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return how often each loader of these states has been switched in the session so far."""
    done = [event["loader"] for event in switches(events)]
    return {
        f"{PREFIX}/{_loader_key(state['name'])}/switches": float(done.count(state["id"]))
        for state in states
        if not state.get("ended")
    }


def comparison_figures(compared: SwitchComparison) -> dict[str, float]:
    """Return the figures of both sides of a switch; those that were not measured are left out."""
    found = {"faster": compared.faster}
    for name, side in (("before", compared.before), ("after", compared.after)):
        if side is not None:
            found |= {f"{name}/{part}": value for part, value in (
                ("images", side.rate), ("wait", side.wait), ("step", side.step), ("seconds", side.seconds),
                ("samples", float(side.samples)), ("gpu_p50", side.quantile("gpu", "p50")),
                ("cpu_p95", side.quantile("cpu", "p95")),
            )}  # fmt: skip
    return {f"{PREFIX}/comparison/{key}": float(value) for key, value in found.items() if math.isfinite(value)}


# ---- The threads that write it.


@dataclass(frozen=True)
class Source:
    """What the threads read: the store, the loaders' states, and the comparison of the last switch."""

    store: Store
    states: Callable[[], Sequence[Mapping[str, Any]]]
    compare: Callable[[], SwitchComparison]
    complain: Callable[[str], object]  # called with the sentence of a failure, once for each cause


class _ClientLog:
    """The thread of one client."""

    def __init__(self, target: str, source: Source) -> None:
        self._name = target.partition(":")[0]
        self._client = _client(target)
        self._source = source
        self._say("waiting", None, self._client.waits_for)
        self._end = threading.Event()
        self._means = _Means()
        self._written = False  # what the means hold
        self._seq = source.store.last_seq  # of the last row in the means
        self._at = 0.0  # its session time, s
        self._stepped = source.store.steps.newest  # no step that ended before it is in the means; session s
        self._ends: dict[str, float] = {}  # of the last step in the means, for each loader's id
        self._run: str | None = None
        self._described: tuple[dict[str, str], dict[str, float]] = {}, {}  # texts and figures, as the run has them
        self._compare_due = 0.0
        self._compared: tuple[dict[str, str], dict[str, float]] = {}, {}
        self._thread = threading.Thread(target=self._loop, name=f"kernel-monitor-{self._name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Have the thread write what is left, and end."""
        self._end.set()

    def join(self, seconds: float) -> None:
        """Wait for the thread's end, at most so long."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._source.complain(f"{self._name} did not take the last figures within {_END_S:g} s; it may yet do so.")

    def _say(self, state: Literal["waiting", "logging", "failed"], run: str | None, message: str = "") -> None:
        self.state: ExperimentLogState = {"client": self._name, "state": state, "run": run, "message": message}

    def _loop(self) -> None:
        ending = False
        while not ending:
            ending = self._end.wait(PERIOD_S)
            try:
                self._turn(ending=ending)
            except Exception as error:  # noqa: BLE001 - a client's own: of its files, its server, its version
                self._fail(error)
        try:
            self._client.close()
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        message = cause(error)
        if (self.state["state"], self.state["message"]) != ("failed", message):
            self._source.complain(f"Logging to {self._name} failed, and is tried every {PERIOD_S:g} s: {message}")
        self._say("failed", self._run, message)
        self._run = None  # what is of the whole run is written again
        with suppress(Exception):  # the client has failed already
            self._client.close()

    def _turn(self, *, ending: bool) -> None:
        """Write what was measured since the last turn, if a run is active."""
        store, client = self._source.store, self._client
        run = client.find_run()
        if run is None:
            self._run, self._seq, self._stepped = None, store.last_seq, store.steps.newest
            self._ends.clear()
            self._means.clear()
            self._say("waiting", None, client.waits_for)
            return
        if run != self._run:
            self._described = {}, {}
        rows = store.rows(self._seq)
        if len(rows.seq):
            if self._written and not client.overwrites():
                self._means.clear()
            self._written = False
            self._means.add(rows, self._new_steps([loader.id for loader in rows.schema.loaders]))
            self._seq, self._at = int(rows.seq[-1]), float(rows.time[-1])
        states = self._source.states()
        wall = rows.schema.origin + self._at
        values = self._means.values()
        if values and not self._written:
            client.write(values | switch_counts(states, store.events()), self._at, wall)
            self._written = True
        self._describe(states, wall, ending=ending)
        self._run = run
        self._say("logging", run)

    def _new_steps(self, loaders: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Return the steps of each loader since the last call; those that a GPU times come late."""
        ends = {loader: self._ends.get(loader, self._stepped) for loader in loaders}
        if not ends:
            return {}
        table = self._source.store.steps.table(min(ends.values()))
        found = {loader: table.of(loader, end) for loader, end in ends.items()}
        self._ends = {key: float(found[key]["end"][-1]) if len(found[key]) else end for key, end in ends.items()}
        return found

    def _describe(self, states: Sequence[Mapping[str, Any]], wall: float, *, ending: bool) -> None:
        """Write the engines in use and the comparison, as far as they changed."""
        began = time.monotonic()
        if ending or (began >= self._compare_due and switches(self._source.store.events())):
            compared = self._source.compare()
            if ending or math.isfinite(compared.faster):  # else too little was measured yet
                self._compared = {f"{PREFIX}/comparison/sentence": compared.sentence}, comparison_figures(compared)
            ended = time.monotonic()
            self._compare_due = ended + max(_COMPARISON_S, (ended - began) / _COMPARISON_SHARE)
        texts, figures = engine_texts(states) | self._compared[0], self._compared[1]
        if (texts, figures) != self._described:
            before, known = self._described
            self._client.describe(
                {key: text for key, text in texts.items() if before.get(key) != text},
                {key: value for key, value in figures.items() if known.get(key) != value},
                self._at,
                wall,
            )
            self._described = texts, figures


class ExperimentLog:
    """The logs of a monitor, one for each client. Thread-safe."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._logs: dict[str, _ClientLog] = {}

    def begin(self, wanted: Sequence[str]) -> None:
        """Log to these `targets` from now on, and to no others."""
        with self._lock:
            gone = [self._logs.pop(target) for target in [*self._logs] if target not in wanted]
            for target in wanted:
                if target not in self._logs:
                    self._logs[target] = _ClientLog(target, self._source)
            atexit.unregister(self.end)
            if self._logs:
                atexit.register(self.end)
        _end(gone)

    def end(self) -> None:
        """Write what is left; a client that is slow is waited for some seconds, and then left to its thread."""
        with self._lock:
            logs = [*self._logs.values()]
            self._logs = {}
        _end(logs)

    def states(self) -> list[ExperimentLogState]:
        """Return the state of each log."""
        with self._lock:
            return [log.state for log in self._logs.values()]

    def lines(self) -> list[str]:
        """Return a line for the status on each log."""
        return [words(state) for state in self.states()]

    def failures(self) -> list[str]:
        """Return a sentence for each log that fails."""
        lines = [words(state) for state in self.states() if state["state"] == "failed"]
        return [f"{said[0].upper()}{said[1:]}." for said in lines]

    def forget_in_child(self) -> None:
        """Detach a forked child, which has none of the threads."""
        self._lock = threading.Lock()
        self._logs = {}


def _end(logs: Sequence[_ClientLog]) -> None:
    for one in logs:
        one.end()
    until = time.monotonic() + _END_S
    for one in logs:
        one.join(max(0.0, until - time.monotonic()))


def words(state: ExperimentLogState) -> str:
    """Return a log's state as one line."""
    if state["state"] == "logging":
        return f"logging to {state['client']}: {state['run']}"
    failed = f"{state['message']}; it is tried every {PERIOD_S:g} s"
    return f"not logging to {state['client']}: {failed if state['state'] == 'failed' else state['message']}"
