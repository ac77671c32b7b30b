"""``make screenshots``: cell, sidebar and report, light and dark, wide and narrow, to docs/screens.

They show a real run: a notebook trains in JupyterLab, a loader is swapped by a click, and Chromium takes the picture.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser

from .lab import CELL, SIDEBAR, Lab, Server, chromium, server

IMAGES = 512
SETUP = """\
%load_ext kernel_monitor
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from kernel_monitor import switchable

transform = v2.Compose([
    v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(),
    v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
    v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
])
data = DataLoader(ImageFolder("images", transform), batch_size=32, shuffle=True, num_workers=2)
loader = switchable(data, name="train")
%monitor"""
TRAIN = """\
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 7, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                            torch.nn.Flatten(), torch.nn.Linear(8, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(40):
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(); loss.backward(); optimizer.step()"""


def main(target: Path) -> None:
    """Take all pictures into ``target``."""
    from kernel_monitor.demo import demo_data

    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with server(root) as running, chromium() as browser:
            demo_data(running.root / "images", images=IMAGES)
            for theme in ("light", "dark"):
                _one_theme(browser, running, root, target, theme)
    for picture in sorted(target.glob("*.png")):
        print(picture, picture.stat().st_size // 1024, "KiB")


def _one_theme(browser: Browser, running: Server, root: Path, target: Path, theme: str) -> None:
    lab = Lab(browser, running, width=1680, height=1080, dark=theme == "dark")
    try:
        path = running.notebook(f"train-{theme}.ipynb", SETUP, TRAIN)
        lab.open(path)
        lab.command("application:toggle-left-area")
        lab.run_cell(0)
        lab.wait_running(CELL)
        sidebar = lab.open_sidebar()
        lab.wait_running(SIDEBAR)
        lab.run_cell(1)
        time.sleep(14)
        lab.dashboard(SIDEBAR).get_by_role("radio", name="dali-cpu", exact=True).click()
        lab.page.wait_for_function(
            "() => document.querySelector('.km-sidebar [role=status]').textContent.includes('dali-cpu since')"
        )
        time.sleep(14)
        lab.dashboard(CELL).scroll_into_view_if_needed()
        time.sleep(1)
        lab.page.screenshot(path=target / f"lab-{theme}.png")
        lab.dashboard(CELL).screenshot(path=target / f"cell-{theme}-wide.png")
        sidebar.screenshot(path=target / f"sidebar-{theme}-wide.png")
        with lab.page.expect_download(timeout=60_000) as download:
            sidebar.get_by_role("button", name="Export").click()
        report = root / f"report-{theme}.html"
        download.value.save_as(report)
        lab.page.set_viewport_size({"width": 820, "height": 1080})
        time.sleep(2)
        sidebar.screenshot(path=target / f"sidebar-{theme}-narrow.png")
        lab.command("application:toggle-right-area")
        time.sleep(2)
        lab.dashboard(CELL).scroll_into_view_if_needed()
        lab.dashboard(CELL).screenshot(path=target / f"cell-{theme}-narrow.png")
        for kind, width in (("wide", 1280), ("narrow", 400)):
            page = browser.new_page(
                viewport={"width": width, "height": 900}, color_scheme="dark" if theme == "dark" else "light"
            )
            page.goto(report.as_uri())
            page.wait_for_timeout(1500)
            page.screenshot(path=target / f"report-{theme}-{kind}.png", full_page=True)
            page.close()
        lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    finally:
        lab.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/screens"))
