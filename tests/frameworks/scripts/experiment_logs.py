"""A loop whose figures go into runs of wandb (offline), MLflow and TensorBoard at once; reads back what these wrote.

Prints JSON: what `test_experiment_log.py` asks for.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from kernel_monitor import monitor, switchable
from kernel_monitor.runtime import experiment_log
from tests.frameworks.training import BATCH, numbered

_BLOCK = 1 << 15  # bytes of a block of wandb's offline file
LONG_S = 240.0  # the comparison must be there by then
MORE_S = 3.0  # for which the training goes on then, so that every run gets the comparison


def train(folder: str, run: Any) -> tuple[int, int]:
    """Train until the switch can be compared, and some seconds more; returns the epochs and the samples."""
    loader = switchable(DataLoader(numbered(folder), BATCH), name="train")
    began, epoch, samples = time.monotonic(), 0, 0
    comparable = began + LONG_S
    while (now := time.monotonic()) < comparable + MORE_S:
        assert now < began + LONG_S, monitor.comparison()
        if now < comparable and monitor.comparison().faster > 0:
            comparable = now
        for images, _ in loader:
            samples += len(images)
            time.sleep(0.02)
        # The user's own steps: their epochs.
        run.log({"epoch": epoch, "own": 10.0 * epoch}, step=epoch)
        epoch += 1
        if time.monotonic() > began + 3 and not loader.history:
            loader.switch("threads")
    return epoch, samples


def wandb_rows(folder: Path, run: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of a run's history, and its summary, from wandb's offline file.

    Its format: 7 bytes, then records as in LevelDB's log (checksum, length and type, in blocks of 32 KiB), each a
    protobuf `Record`.
    """
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob(f"wandb/*-{run}/*.wandb")
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    for content in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        rows += [_items(record.history.item)] if record.HasField("history") else []
        summary |= _items(record.summary.update)
    return rows, summary


def _records(data: bytes) -> Iterator[bytes]:
    at, parts = 7, b""
    while at + 7 <= len(data):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def main(folder: str, output: str) -> None:
    root = Path(output)
    os.chdir(root)
    experiment_log.PERIOD_S = 0.25
    experiment_log._COMPARISON_S, experiment_log._COMPARISON_SHARE = 1.0, 1.0
    monitor.configure(log_to=["wandb", "mlflow", "tensorboard:own"])
    monitor.start(record=False)
    found: dict[str, Any] = {"before": monitor.experiment_logs}

    import mlflow
    import wandb

    mlflow.set_tracking_uri(f"file:{root / 'mlruns'}")
    active = mlflow.start_run(run_name="mine")
    run = wandb.init(project="p", settings=wandb.Settings(console="off"))
    found["epochs"], found["samples"] = train(folder, run)
    found["during"] = monitor.experiment_logs
    found["names"] = [f"{run.name or ''} {run.id}", f"mine ({active.info.run_id})", str(root / "own")]
    run.finish()
    with wandb.init(project="p", settings=wandb.Settings(console="off")) as silent:  # no row is logged into it
        time.sleep(1.5)
    mlflow.end_run()
    until = time.monotonic() + LONG_S
    while [log["state"] for log in monitor.experiment_logs] != ["waiting", "waiting", "logging"]:
        assert time.monotonic() < until, monitor.experiment_logs
        time.sleep(0.05)
    found["after"] = monitor.experiment_logs
    monitor.stop()
    found["comparison"] = experiment_log.comparison_figures(monitor.comparison())
    found["sentence"] = monitor.comparison().sentence

    found["wandb"], found["wandb summary"] = wandb_rows(root, run.id)
    found["silent"], _ = wandb_rows(root, silent.id)
    client, number = mlflow.MlflowClient(), active.info.run_id
    data = client.get_run(number).data
    found["mlflow"] = {
        key: [[metric.timestamp, metric.step, metric.value] for metric in client.get_metric_history(number, key)]
        for key in data.metrics
    }
    found["mlflow tags"] = data.tags

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(root / "own"))
    events.Reload()
    found["tensorboard"] = {
        key: [[event.wall_time, event.step, event.value] for event in events.Scalars(key)]
        for key in events.Tags()["scalars"]
    }
    found["tensorboard texts"] = {
        key: [event.tensor_proto.string_val[0].decode() for event in events.Tensors(key)]
        for key in events.Tags()["tensors"]
    }
    (root / "found.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
