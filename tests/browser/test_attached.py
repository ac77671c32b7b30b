"""A training that never names this package, in a notebook with two magics, is measured, and one click switches it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from .lab import CELL, SHOW, Lab, Server

IMAGES = 96
TRAIN = """
import os
import time

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

torch.set_num_threads(1)
augment = transforms.Compose(
    [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)
dataset = ImageFolder({root!r}, augment)
dataset.samples = dataset.imgs = [(path, number) for number, (path, _) in enumerate(dataset.samples[:{images}])]
train_loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=1)
model = torch.nn.Linear(3 * 32 * 32, {images})
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
delivered = []
while not os.path.exists({enough!r}):
    seen = []
    for images, labels in train_loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images.flatten(1)), labels).backward()
        optimizer.step()
        seen += labels.tolist()
        time.sleep(0.1)
    delivered.append(seen)
print("finished", type(train_loader) is DataLoader)
"""
COUNT = "print([sorted(seen) == list(range(len(dataset))) for seen in delivered])"


def test_one_click_switches_a_training_without_a_line_of_ours(
    browser: Browser, lab_server: Server, images: Path, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    train = TRAIN.format(root=str(images), images=IMAGES, enough=str(enough))
    assert "kernel_monitor" not in train + COUNT
    with Lab(browser, lab_server) as lab:
        dashboard = lab.show(SHOW, train, COUNT)
        lab.run_cell(1)
        engines = dashboard.get_by_role("radiogroup", name="Loader")
        torchvision = engines.get_by_role("radio", name="torchvision", exact=True)
        expect(torchvision).to_have_attribute("aria-checked", "true", timeout=90_000)
        dali = engines.get_by_role("radio", name="dali-cpu", exact=True)
        expect(dali).not_to_have_attribute("aria-disabled", "true")
        # Said before the click: what it changes.
        described = dali.get_attribute("aria-describedby") or ""
        expect(lab.page.locator(f"#{described.split()[0]}")).to_contain_text("From the click on, kernel_monitor seeds")
        dashboard.get_by_text(re.compile(r"epoch [2-9]")).first.wait_for()
        status = dashboard.get_by_role("status").first
        for number in range(1, 5):  # one of them in the middle of an epoch: by chance an epoch has just begun
            dali.click()
            expect(status).to_contain_text("dali-cpu since batch", timeout=90_000)
            expect(dashboard.locator(".km-counter")).to_contain_text("each once")
            torchvision.click()
            expect(status).to_contain_text("torchvision since batch", timeout=90_000)
            lab.until(CELL, f"monitor.feed.events.filter(event => event.kind === 'switch').length === {2 * number}")
            events = lab.monitor(CELL, "monitor.feed.events")
            if any(event["batch"] > 0 for event in events if event["kind"] == "switch"):
                break
        else:
            pytest.fail("no click was answered in the middle of an epoch")
        enough.touch()
        lab.wait_printed(1, "finished True", 120)
        lab.wait_for_idle()
        lab.run_cell(2)
        lab.wait_printed(2, "True")
        once = ast.literal_eval(lab.output(2).strip().splitlines()[0])
        assert len(once) >= 2
        assert all(once)
        assert lab.errors == []
