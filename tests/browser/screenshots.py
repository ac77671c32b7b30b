"""``make screenshots``: cell, sidebar and report, light and dark, wide and narrow, to build/screens.

    python -m tests.browser.screenshots [DIR] [train] [swap] [verdict] [tune] [scale] [ranks] [report]

``train`` is a real run: a notebook trains in JupyterLab, a loader is swapped by a click, and Chromium takes the
picture; then its recording is opened. ``swap`` is the moving picture of the README: a plain `DataLoader` is switched by
a click in the running cell, with a picture each second around it. ``verdict`` is a run that its loader holds up:
*Diagnose* is pressed, ten steps are profiled, and everything is unfolded. ``tune`` is a tune of such a loop: question,
progress, result and the loader's knobs. ``scale`` is JupyterLab over a machine of 256 cores and eight GPUs that is not
there, ``ranks`` a job of two real ranks whose loaders are switched by a click, and ``report`` the exported page of
large machines, on the screen and on paper. Without a name, all of them.
Without DIR, the pictures that the documentation shows are also copied to docs/screens.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw
from playwright.sync_api import Browser, Page

from kernel_monitor.output import write
from kernel_monitor.report.page import render
from tests.loaders.conftest import make_folder

from .lab import CELL, SIDEBAR, Lab, Server, chromium, server
from .reported import reported
from .scenes import HEAVY_LOOP, HEAVY_SETUP, pictured

IMAGES = 512
SWAP_SETUP = """\
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
torch.set_num_threads(1)
transform = v2.Compose([v2.RandomResizedCrop(160, antialias=True), v2.RandomHorizontalFlip(), v2.ToImage(),
                        v2.ToDtype(torch.float32, scale=True)])
loader = DataLoader(ImageFolder("images", transform), batch_size=16, shuffle=True, num_workers=2)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 7, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                            torch.nn.Flatten(), torch.nn.Linear(8, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train_step(images, labels):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad(); loss.backward(); optimizer.step()"""
SWAP_TRAIN = """\
%load_ext kernel_monitor
%monitor
for epoch in range(1000):
    for images, labels in loader:
        train_step(images, labels)"""
SWAP_BEFORE_S, SWAP_EVERY_S, SWAP_MOST_S, SWAP_SHOWN_MS = 12, 0.9, 30, 300
SWAP_BEFORE, SWAP_AFTER = 5, 12  # pictures before the click, and from the first comparison on
SWAP_POINTER = (640.0, 520.0)
TRAIN = """\
for epoch in range(200):
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(); loss.backward(); optimizer.step()"""
SWAP_BEFORE_S, SWAP_EVERY_S, SWAP_SHOWN_MS = 16, 1.0, 300
SWAP_FRAMES, SWAP_CLICK = 22, 5
SWAP_POINTER = (640.0, 420.0)
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
SCENES = ("train", "swap", "verdict", "tune", "scale", "ranks", "report")
TARGET = Path("build/screens")
SHOWN = Path("docs/screens")
"""The pictures that README and docs show; the only ones in the repository, at most nine."""


def main(target: Path, scenes: Sequence[str] = SCENES) -> None:
    """Take the pictures of these scenes into ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for scene in scenes:
            with tempfile.TemporaryDirectory() as folder:
                takes = {
                    "train": train, "swap": swap, "verdict": verdict, "tune": tune, "scale": scale, "ranks": ranks,
                    "report": reports,
                }  # fmt: skip
                takes[scene](browser, Path(folder), target)
    for picture in sorted([*target.glob("*.png"), *target.glob("*.webp"), *target.glob("*.pdf")]):
        print(picture, picture.stat().st_size // 1024, "KiB")


def train(browser: Browser, root: Path, target: Path) -> None:
    """A training run, its dashboards, report, status bar and recording."""
    from kernel_monitor.demo import demo_data

    with server(root) as running:
        demo_data(running.root / "images", images=IMAGES)
        for theme in THEMES:
            _one_theme(browser, running, root, target, theme)


def swap(browser: Browser, root: Path, target: Path) -> None:
    """A plain training, and the click: one moving picture, `SWAP_EVERY_S` of the run in each `SWAP_SHOWN_MS`."""
    from kernel_monitor.demo import demo_data

    with server(root) as running, Lab(browser, running, width=1100, height=760) as lab:
        for path in demo_data(running.root / "images", images=IMAGES // 2).rglob("*.jpg"):
            with Image.open(path) as small:  # a camera's photographs are larger than the demo's
                small.resize((2 * small.width, 2 * small.height)).save(path, quality=90)
        # The first cell is out of sight when the one that trains begins with its two lines at the top.
        lab.open(running.notebook("train.ipynb", SWAP_SETUP, SWAP_TRAIN))
        lab.command("application:toggle-left-area")
        lab.command("statusbar:toggle")
        lab.run_cell(0)
        lab.wait_for_idle()
        lab.run_cell(1)
        lab.wait_running(CELL, 120)
        dashboard = lab.dashboard(CELL)
        engine = dashboard.get_by_role("radio", name="dali-cpu", exact=True)
        engine.wait_for()
        training = lab.page.locator(".jp-CodeCell").nth(1)
        training.evaluate("(cell) => cell.scrollIntoView({ block: 'start' })")
        pointer = SWAP_POINTER
        lab.page.mouse.move(*pointer)
        time.sleep(SWAP_BEFORE_S)
        frames: list[Image.Image] = []

        def take(seconds: float = SWAP_EVERY_S) -> None:
            began = time.monotonic()
            frames.append(_with_pointer(_frame(lab.page), pointer))
            time.sleep(max(0.0, seconds - (time.monotonic() - began)))

        for _ in range(SWAP_BEFORE):
            take()
        box = engine.bounding_box()
        assert box is not None
        pointer = (box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.6)
        lab.page.mouse.move(*pointer)
        take(0.2)
        lab.page.mouse.click(*pointer)
        compared = dashboard.get_by_text("× faster").first
        last = time.monotonic() + SWAP_MOST_S
        while not compared.is_visible() and time.monotonic() < last:
            take()
        if not compared.is_visible():
            raise RuntimeError("The swap made nothing faster: other programs want the cores.")
        for _ in range(SWAP_AFTER):
            take()
        _moving(frames, target / "swap.webp")
        lab.shut_down()


def _frame(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def _with_pointer(frame: Image.Image, at: tuple[float, float]) -> Image.Image:
    """Draw the mouse's arrow, which Chromium's screenshots leave out, where the mouse is."""
    x, y = at
    arrow = [(0, 0), (0, 21), (5, 16), (9, 25), (13, 23), (9, 15), (16, 15)]
    ImageDraw.Draw(frame).polygon([(x + right, y + down) for right, down in arrow], fill="black", outline="white")
    return frame


def _moving(frames: list[Image.Image], path: Path) -> None:
    """Write an animated WebP that is shown for ever, with a rest at its end."""
    rest = [SWAP_SHOWN_MS] * (len(frames) - 1) + [6 * SWAP_SHOWN_MS]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=rest, loop=0, quality=70, method=3)


def verdict(browser: Browser, root: Path, target: Path) -> None:
    """A loop that waits for its data: the line, the question, the way, and what was found."""
    from kernel_monitor.demo import demo_data

    with server(root) as running:
        demo_data(running.root / "images", images=IMAGES)
        for theme in THEMES:
            _one_verdict(browser, running, root, target, theme)


def tune(browser: Browser, root: Path, target: Path) -> None:
    """The same loop while *Tune* finds a faster setting."""
    from kernel_monitor.demo import demo_data

    with server(root) as running:
        demo_data(running.root / "images", images=IMAGES)
        for theme in THEMES:
            _one_tune(browser, running, root, target, theme)


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


def _one_tune(browser: Browser, running: Server, root: Path, target: Path, theme: str) -> None:
    enough = root / f"tuned-{theme}"
    with Lab(browser, running, width=1680, height=1080, dark=theme == "dark") as lab:
        setup = HEAVY_SETUP.format(root="images").replace("transforms.RandomRotation(20)", "transforms.Resize(256)")
        lab.open(running.notebook(f"tune-{theme}.ipynb", setup, HEAVY_LOOP.format(enough=str(enough))))
        lab.command("application:toggle-left-area")
        lab.run_cell(0)
        lab.wait_running(CELL)
        sidebar = lab.open_sidebar()
        lab.wait_running(SIDEBAR)
        lab.wait_for_idle()
        lab.run_cell(1)
        cell = lab.dashboard(CELL)
        cell.locator(".km-verdict", has_text="Input-bound").wait_for(timeout=90_000)
        sidebar.get_by_role("button", name="Tune", exact=True).click()
        lab.page.screenshot(path=target / f"tune-{theme}-question.png")
        sidebar.get_by_role("alertdialog", name="Tune?").get_by_role("button", name="Tune").click()
        time.sleep(20)
        lab.page.screenshot(path=target / f"tune-{theme}-running.png")
        cell.locator(".km-result").first.wait_for(timeout=90_000)
        time.sleep(8)
        lab.page.screenshot(path=target / f"tune-{theme}-wide.png")
        lab.page.set_viewport_size({"width": 820, "height": 1080})
        tools = sidebar.get_by_role("button", name="Tools")
        if tools.get_attribute("aria-expanded") == "true":  # it unfolds where something is going on
            tools.click()
        time.sleep(3)
        sidebar.screenshot(path=target / f"tune-{theme}-narrow.png")
        tools.click()
        lab.page.evaluate("() => document.querySelectorAll('.km-knobs').forEach((el) => { el.open = true; })")
        time.sleep(1)
        sidebar.screenshot(path=target / f"tune-{theme}-tools.png")
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
