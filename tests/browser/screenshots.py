"""``make screenshots``: cell, sidebar and report, light and dark, wide and narrow, to build/screens.

    python -m tests.browser.screenshots [DIR] [train] [verdict] [scale] [ranks] [report]

``train`` is a real run: a notebook trains in JupyterLab, a loader is swapped by a click, and Chromium takes the
picture; then its recording is opened. ``verdict`` is one that its loader holds up: *Diagnose* is pressed, ten steps are
profiled, and everything is unfolded. ``scale`` is JupyterLab over a machine of 256 cores and eight GPUs that is not
there, ``ranks`` a job of two real ranks whose loaders are switched by a click, and ``report`` the exported page of
large machines, on the screen and on paper. Without a name, all of them.
Without DIR, the pictures that the documentation shows are also copied to docs/screens.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, Page

from kernel_monitor.output import write
from kernel_monitor.report.page import render
from tests.loaders.conftest import make_folder

from .lab import CELL, SIDEBAR, Lab, Server, chromium, server
from .reported import reported
from .scenes import HEAVY_LOOP, HEAVY_SETUP, pictured

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
RANKS = """\
%env EPOCHS=200
%env STEP=0.05
!torchrun --standalone --nproc_per_node 2 -m tests.ranks.switching photos {out}"""

BUSY_S = 15
BUSY = f"import time\nuntil = time.monotonic() + {BUSY_S + 5}\nwhile time.monotonic() < until: pass"
SHOW_ALL = "%monitor show all"
THEMES = ("light", "dark")
SCENES = ("train", "verdict", "scale", "ranks", "report")
TARGET = Path("build/screens")
SHOWN = Path("docs/screens")
"""The pictures that README and docs show; the only ones in the repository, at most nine."""


def main(target: Path, scenes: Sequence[str] = SCENES) -> None:
    """Take the pictures of these scenes into ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for scene in scenes:
            with tempfile.TemporaryDirectory() as folder:
                takes = {"train": train, "verdict": verdict, "scale": scale, "ranks": ranks, "report": reports}
                takes[scene](browser, Path(folder), target)
    for picture in sorted([*target.glob("*.png"), *target.glob("*.pdf")]):
        print(picture, picture.stat().st_size // 1024, "KiB")


def train(browser: Browser, root: Path, target: Path) -> None:
    """A training run, its dashboards, report, status bar and recording."""
    from kernel_monitor.demo import demo_data

    with server(root) as running:
        demo_data(running.root / "images", images=IMAGES)
        for theme in THEMES:
            _one_theme(browser, running, root, target, theme)


def verdict(browser: Browser, root: Path, target: Path) -> None:
    """A loop that waits for its data: the line, the question, the way, and what was found."""
    from kernel_monitor.demo import demo_data

    with server(root) as running:
        demo_data(running.root / "images", images=IMAGES)
        for theme in THEMES:
            _one_verdict(browser, running, root, target, theme)


def scale(browser: Browser, root: Path, target: Path) -> None:
    """256 cores in four sockets and eight GPUs: the default charts and all of them."""
    from benchmarks.page import large_machine

    with large_machine(root, 256, 8) as running:
        for theme in THEMES:
            with Lab(browser, running, width=1500, height=1300, dark=theme == "dark") as lab:
                lab.open(running.notebook(f"scale-{theme}.ipynb", "%load_ext kernel_monitor\n%monitor", BUSY, SHOW_ALL))
                lab.command("application:toggle-left-area")
                lab.run_cell(0)
                lab.wait_running(CELL)
                lab.run_cell(1)
                time.sleep(BUSY_S)
                lab.dashboard(CELL).screenshot(path=target / f"scale-{theme}.png")
                lab.wait_for_idle()
                lab.run_cell(2)
                lab.until(CELL, "monitor.document?.get_model_by_name('gpu-pcie')", seconds=90)
                # What is not on the screen is not drawn.
                lab.page.set_viewport_size({"width": 1500, "height": 4000})
                lab.page.evaluate("(cell) => document.querySelector(cell).scrollIntoView()", CELL)
                time.sleep(8)
                lab.dashboard(CELL).screenshot(path=target / f"charts-{theme}.png")
                lab.shut_down()


def ranks(browser: Browser, root: Path, target: Path) -> None:
    """Two ranks in cell and sidebar, after one click has switched the loaders of both."""
    os.environ["PYTHONPATH"] = str(Path.cwd())  # for the training, which the kernel starts in the notebook's folder
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with server(root) as running:
        make_folder(running.root / "photos", 203)
        for theme in THEMES:
            out = running.root / f"out-{theme}"
            out.mkdir()
            (out / "go").touch()
            with Lab(browser, running, width=1500, height=1240, dark=theme == "dark") as lab:
                job = RANKS.format(out=out.name)
                lab.open(running.notebook(f"ranks-{theme}.ipynb", "%load_ext kernel_monitor\n%monitor", job))
                lab.command("application:toggle-left-area")
                lab.run_cell(0)
                lab.wait_running(CELL)
                lab.open_sidebar()
                lab.run_cell(1)
                dashboard = lab.dashboard(CELL)
                dashboard.get_by_text("torchvision on 2 ranks").first.wait_for(timeout=90_000)
                time.sleep(BUSY_S / 2)
                dashboard.get_by_role("radio", name="dali-cpu").click()
                dashboard.get_by_text("dali-cpu on 2 ranks").first.wait_for(timeout=60_000)
                time.sleep(BUSY_S / 2)
                lab.page.screenshot(path=target / f"ranks-{theme}.png")
                (out / "enough").touch()
                lab.wait_for_idle()
                lab.shut_down()


def _whole(page: Page, path: Path) -> None:
    """A picture of the whole page: its charts are drawn when they come into sight, so it is scrolled through first."""
    for top in range(0, page.evaluate("() => document.documentElement.scrollHeight"), 600):
        page.evaluate("(top) => window.scrollTo(0, top)", top)
        page.wait_for_timeout(300)
    page.evaluate("() => window.scrollTo(0, 0)")
    page.wait_for_timeout(300)
    page.screenshot(path=path, full_page=True)


def reports(browser: Browser, root: Path, target: Path) -> None:
    """The exported pages of machines that are not at hand: one wide, one narrow."""
    snapshots = pictured()
    for name, theme, kind, width in (("scale", "light", "wide", 1280), ("container", "dark", "narrow", 280)):
        path = write(root / f"{name}.html", render(snapshots[name]))
        page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme="dark" if theme == "dark" else "light"
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=true]")
        page.wait_for_timeout(1500)
        _whole(page, target / f"report-{name}-{theme}-{kind}.png")
        page.close()
    path = write(root / "reported.html", render(reported()))
    for theme in THEMES:
        page = browser.new_page(
            viewport={"width": 1280, "height": 900}, color_scheme="dark" if theme == "dark" else "light"
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=true]")
        page.wait_for_timeout(1500)
        # In this order: after a picture of the whole page Chromium leaves specks in the next one.
        page.screenshot(path=target / f"report-first-{theme}.png")
        _whole(page, target / f"report-whole-{theme}.png")
        if theme == "dark":  # on paper it is light all the same
            page.pdf(path=target / "report-printed.pdf", prefer_css_page_size=True)
        page.close()


def _one_theme(browser: Browser, running: Server, root: Path, target: Path, theme: str) -> None:
    with Lab(browser, running, width=1680, height=1080, dark=theme == "dark") as lab:
        path = running.notebook(f"train-{theme}.ipynb", SETUP, TRAIN, "%monitor open")
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
        lab.page.locator("#jp-main-statusbar").screenshot(path=target / f"statusbar-{theme}.png")
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
            page.wait_for_selector("html[data-ready=true]")  # the loop beside it wants every core
            page.wait_for_timeout(1500)
            _whole(page, target / f"report-{theme}-{kind}.png")
            page.close()
        _recorded(lab, target, theme)
        lab.shut_down()


def _one_verdict(browser: Browser, running: Server, root: Path, target: Path, theme: str) -> None:
    enough = root / f"enough-{theme}"
    with Lab(browser, running, width=1680, height=1300, dark=theme == "dark") as lab:
        cells = (HEAVY_SETUP.format(root="images"), HEAVY_LOOP.format(enough=str(enough)))
        lab.open(running.notebook(f"verdict-{theme}.ipynb", *cells))
        lab.command("application:toggle-left-area")
        lab.run_cell(0)
        lab.wait_running(CELL)
        sidebar = lab.open_sidebar()
        lab.wait_running(SIDEBAR)
        lab.wait_for_idle()
        lab.run_cell(1)
        cell = lab.dashboard(CELL)
        cell.locator(".km-verdict", has_text="Input-bound").wait_for(timeout=90_000)
        sidebar.get_by_role("button", name="Charts").click()
        sidebar.get_by_label("Price per hour").fill("2.50 €")
        sidebar.get_by_label("Price per hour").press("Enter")
        sidebar.get_by_role("button", name="Charts").click()
        cell.get_by_role("button", name="Diagnose", exact=True).click()
        cell.screenshot(path=target / f"verdict-{theme}-question.png")
        cell.get_by_role("button", name="Run it").click()
        cell.get_by_role("progressbar", name="Diagnose").wait_for()
        cell.get_by_text("measuring dali-cpu").wait_for(timeout=120_000)
        cell.screenshot(path=target / f"verdict-{theme}-running.png")
        cell.locator(".km-result").first.wait_for(timeout=120_000)
        cell.get_by_role("button", name="Profile 10 steps").click()
        cell.locator(".km-result", has_text="Profile").last.wait_for(timeout=120_000)
        cell.get_by_role("radio", name="dali-cpu", exact=True).click()
        time.sleep(8)
        cell.get_by_role("button", name="Profile 10 steps").click()
        cell.get_by_role("progressbar", name="Profile").wait_for()
        cell.get_by_role("progressbar", name="Profile").wait_for(state="hidden", timeout=120_000)
        time.sleep(3)
        lab.page.evaluate("() => document.querySelectorAll('.km-insight details').forEach((el) => { el.open = true; })")
        lab.page.set_viewport_size({"width": 1680, "height": 1800})
        cell.scroll_into_view_if_needed()
        time.sleep(3)
        cell.screenshot(path=target / f"verdict-{theme}-wide.png")
        lab.page.set_viewport_size({"width": 820, "height": 2400})
        time.sleep(3)
        sidebar.screenshot(path=target / f"verdict-{theme}-narrow.png")
        enough.touch()
        lab.wait_for_idle()
        lab.shut_down()


def _recorded(lab: Lab, target: Path, theme: str) -> None:
    """The session that has just been recorded, opened in the last cell of the same notebook."""
    lab.command("notebook:interrupt-kernel")
    lab.wait_for_idle()
    lab.run_cell(2)
    picture = lab.page.locator(".jp-CodeCell").nth(2).locator(".km-dashboard")
    picture.wait_for(state="visible", timeout=60_000)
    # What is not on the screen is not drawn.
    lab.page.set_viewport_size({"width": 1680, "height": 2600})
    picture.evaluate("(picture) => picture.scrollIntoView()")
    time.sleep(6)
    picture.screenshot(path=target / f"recorded-{theme}.png")


if __name__ == "__main__":
    words = sys.argv[1:]
    chosen = next((Path(word) for word in words if word not in SCENES), TARGET)
    main(chosen, [word for word in words if word in SCENES] or SCENES)
    if chosen == TARGET:
        for shown in SHOWN.iterdir():
            if (TARGET / shown.name).exists():
                shutil.copyfile(TARGET / shown.name, shown)
