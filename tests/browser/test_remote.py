"""One click in a running cell, and the loader's workers are on other machines: their rows appear, and the marker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.remote.running import RunningCluster

from ..loaders.conftest import make_folder
from .lab import CELL, IMPORTS, SHOW, SIDEBAR, Lab

SETUP = f"""{IMPORTS}
os.environ["RAY_ADDRESS"] = {{address!r}}
transform = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
loader = switchable(DataLoader(ImageFolder({{root!r}}, transform), batch_size=8, num_workers=2), name="train")
{SHOW}
%monitor price 37.69$+3.67
"""
TRAIN = """
import time
complete = []
until = time.monotonic() + 300
while time.monotonic() < until and not os.path.exists({enough!r}):
    seen = 0
    for images, labels in loader:
        seen += len(labels)
        time.sleep(0.02)
    complete.append(seen == len(loader.dataset))
print(all(complete), loader.state()["lost"], loader.state()["doubled"], loader.backend)
"""


@pytest.fixture(scope="module")
def running() -> Iterator[RunningCluster]:
    cluster = RunningCluster(nodes=2, cores=1)
    try:
        yield cluster
    finally:
        cluster.stop()


def test_a_click_shows_the_rows_of_the_machines_that_work(lab: Lab, running: RunningCluster, tmp_path: Path) -> None:
    root, enough = make_folder(tmp_path / "images", 240), tmp_path / "enough"
    cells = (SETUP.format(address=running.address, root=str(root)), TRAIN.format(enough=str(enough)))
    lab.open(lab.server.notebook("remote.ipynb", *cells))
    lab.open_sidebar()
    lab.run_cell(0)
    for where in (CELL, SIDEBAR):
        lab.wait_running(where)
    lab.run_cell(1)
    radios = lab.dashboard(SIDEBAR).get_by_role("radiogroup", name="Loader")
    radios.get_by_role("radio", name="ray", exact=True).click()
    for where in (CELL, SIDEBAR):
        dashboard = lab.dashboard(where)
        expect(dashboard.get_by_text("CPU machines: busy, % per core")).to_be_visible(timeout=150_000)
        expect(dashboard).to_contain_text(
            re.compile("ray since batch|on this machine and [12] beside it"), timeout=60_000
        )
    assert lab.status() == "busy"
    enough.touch()
    lab.wait_for_idle()
    assert lab.output(1).strip() == "True 0 0 ray"
    assert lab.errors == []
