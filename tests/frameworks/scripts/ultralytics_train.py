"""A training with Ultralytics' YOLO: python ultralytics_train.py FOLDER WORKERS."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ultralytics import YOLO

from tests.frameworks.training import BATCH, EPOCHS, took

FOLDER, WORKERS = sys.argv[1], int(sys.argv[2])
photos = sorted(Path(FOLDER).glob("*/*.jpg"))[:16]
for split, chosen in (("train", photos), ("val", photos[:4])):
    for kind in ("images", "labels"):
        Path("data", kind, split).mkdir(parents=True)
    for photo in chosen:
        Path("data", "images", split, photo.name).write_bytes(photo.read_bytes())
        Path("data", "labels", split, f"{photo.stem}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
Path("data.yaml").write_text(f"path: {Path('data').absolute()}\ntrain: images/train\nval: images/val\nnames: [thing]\n")


def on_train_batch_end(trainer: Any) -> None:
    took([int(Path(name).stem) for name in trainer.seen], trainer.loss)


def preprocessed(trainer: Any) -> None:
    """Keep the files of each batch, which the trainer does not."""
    preprocess = trainer.preprocess_batch

    def preprocess_batch(batch: Any) -> Any:
        trainer.seen = batch["im_file"]
        return preprocess(batch)

    trainer.preprocess_batch = preprocess_batch


model = YOLO("yolov8n.yaml")
model.add_callback("on_train_start", preprocessed)
model.add_callback("on_train_batch_end", on_train_batch_end)
model.train(
    data="data.yaml",
    epochs=EPOCHS,
    imgsz=32,
    batch=BATCH,
    workers=WORKERS,
    device="cpu",
    amp=False,
    plots=False,
    verbose=False,
    close_mosaic=1,
    project=str(Path("runs").absolute()),
)
