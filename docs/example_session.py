"""Records the session that `docs/demo.md` embeds as a report: `python docs/example_session.py FOLDER`.

A small model is trained on generated photographs, first with torchvision, then with DALI. FOLDER gets the recording
(`example.kmsession`) and the report (`site/example-report.html`). A recording that is there is kept: only the report is
written anew.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from itertools import chain, repeat
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor import monitor, open_session, switchable
from kernel_monitor.demo import demo_data
from kernel_monitor.errors import BackendUnavailable

SECONDS, STEPS = 18.0, 60  # with each engine at least
LONGEST_S = 180.0
IMAGES = 512


def record(target: Path) -> None:
    """Train, switch the engine half-way, and leave the recording at `target`."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the other cores belong to the loader
    with tempfile.TemporaryDirectory() as folder:
        transform = v2.Compose(
            [
                v2.ToImage(),
                v2.RandomHorizontalFlip(),
                v2.RandomRotation(30),
                v2.RandomResizedCrop(224, antialias=True),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )
        data = ImageFolder(str(demo_data(Path(folder) / "images", images=IMAGES)), transform)
        loader = switchable(DataLoader(data, batch_size=16, shuffle=True, num_workers=2), name="train")
        model = nn.Sequential(
            nn.Conv2d(3, 16, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, len(data.classes))
        ).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        monitor.start(record=folder, price="2.50 €")
        watched = monitor.watch(model, optimizer)
        began = since = time.monotonic()
        asked = switched = False
        steps = 0
        for images, labels in chain.from_iterable(repeat(loader)):
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            now = time.monotonic()
            if loader.history and not switched:
                since, steps, switched = now, 0, True
            enough = now - since > SECONDS and steps > STEPS
            if (enough and asked and not loader.state()["wanted"]) or now - began > LONGEST_S:
                break
            if enough and not asked:
                asked = True
                try:
                    loader.switch("dali")
                except BackendUnavailable as error:
                    print(f"The example stays with torchvision: {error}")
        print(monitor.comparison())
        session = monitor.session
        watched.stop()
        monitor.stop()
        loader.release()
        recorded = next(path for path in Path(folder).glob("*.kmsession") if session and session[:6] in path.name)
        open_session(recorded).copy(target)


def main(folder: Path) -> None:
    """Make what is missing, and the report from it by the command that users have."""
    site = folder / "site"
    site.mkdir(parents=True, exist_ok=True)
    recording = folder / "example.kmsession"
    if not recording.exists():
        record(recording)
    report = site / "example-report.html"
    subprocess.run([sys.executable, "-m", "kernel_monitor", "report", str(recording), "-o", str(report)], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
