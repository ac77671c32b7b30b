"""The dashboard in a cell: what it shows without a GPU and without a loader, keyboard, export, Notebook 7."""

from __future__ import annotations

import time
from pathlib import Path

from playwright.sync_api import Browser, Locator, expect

from .lab import CELL, IMPORTS, LOADER, SHOW, Lab, server


def test_without_a_gpu_nvml_says_why(lab: Lab) -> None:
    lab.show(SHOW, "import pynvml\ntry:\n    pynvml.nvmlInit()\nexcept pynvml.NVMLError as e:\n    print(e)")
    lab.run_cell(1)
    lab.page.wait_for_function(
        "() => document.querySelectorAll('.jp-CodeCell')[1].querySelector('.jp-OutputArea-output')"
    )
    reason = lab.output(1).strip()
    assert reason
    assert reason in lab.monitor(CELL, "JSON.stringify(monitor.schema)")
    said = "NVML not found" if reason == "NVML Shared Library Not Found" else reason
    expect(lab.dashboard(CELL).get_by_text(f"No NVIDIA GPU: {said}")).to_be_visible()
    # The installed BokehJS is one whose drawing is sped up (bokeh_patches.ts).
    expect(lab.page.locator(".km-pane")).to_have_count(1)
    expect(lab.page.locator(".km-slow")).to_have_count(0)


def test_pixels_show_the_newest_value(lab: Lab) -> None:
    lab.show(SHOW, "import time\nuntil = time.monotonic() + 6\nwhile time.monotonic() < until: pass")
    lab.run_cell(1)
    lab.until(CELL, "monitor.feed.drawn.seq > argument + 20", lab.monitor(CELL, "monitor.feed.drawn.seq"))
    colours = _painted(lab)
    assert any(colours)  # where other tests fill every core, all cells have one colour
    drawn = lab.monitor(CELL, "monitor.newestTileColumn('cpu')")
    values = lab.monitor(CELL, "Array.from(monitor.feed.drawn.values)")
    names = lab.monitor(CELL, "monitor.schema.series.map((s) => s.name)")
    busy = [round(values[k]) for k, name in enumerate(names) if name.endswith("/busy")]
    assert drawn == busy
    from bokeh.palettes import Viridis256

    painted = set().union(*map(set, colours))
    for value in busy:
        colour = Viridis256[min(255, int(value / 100 * 256))]
        near = {int(Viridis256[max(0, min(255, int(value / 100 * 256) + d))][1:], 16) for d in (-3, -2, -1, 0, 1, 2, 3)}
        assert painted & near, f"the colour of {value} % ({colour}) is not on the canvas"


def _painted(lab: Lab) -> list[list[int]]:
    """The opaque colours of each canvas of the cell's dashboard."""
    found: list[list[int]] = lab.page.evaluate(
        """(where) => {
            const count = [];
            const walk = (node) => {
                if (node.shadowRoot) walk(node.shadowRoot);
                for (const child of node.children ?? []) {
                    if (child instanceof HTMLCanvasElement && child.width > 50) {
                        const data = child.getContext('2d').getImageData(0, 0, child.width, child.height).data;
                        const seen = new Set();
                        for (let k = 0; k < data.length; k += 4) {
                            if (data[k + 3] === 255) seen.add((data[k] << 16) | (data[k + 1] << 8) | data[k + 2]);
                        }
                        count.push([...seen]);
                    }
                    walk(child);
                }
            };
            walk(document.querySelector(where));
            return count;
        }""",
        CELL,
    )
    return found


def test_keyboard(lab: Lab, images: Path) -> None:
    group = lab.show(LOADER.format(root=str(images)) + SHOW).get_by_role("radiogroup", name="Loader")
    torchvision = group.get_by_role("radio", name="torchvision", exact=True)
    expect(torchvision).to_be_checked()
    gpu = group.get_by_role("radio", name="dali-gpu", exact=True)
    expect(gpu).to_be_disabled()
    assert gpu.evaluate("(el) => document.getElementById(el.getAttribute('aria-describedby'))?.textContent")
    torchvision.focus()
    lab.page.keyboard.press("ArrowDown")
    lab.page.keyboard.press("Enter")
    expect(lab.dashboard().get_by_role("status").first).to_contain_text("dali-cpu")
    expect(group.get_by_role("radio", name="dali-cpu", exact=True)).to_be_checked()


SATURATED = """
import threading, time, torch
torch.set_num_threads(2)
big = torch.rand(600, 600)
def work(until):
    while time.monotonic() < until:
        big @ big
        sum(range(2000))
until = time.monotonic() + 15
threading.Thread(target=work, args=(until,), daemon=True).start()
work(time.monotonic() + 3)
"""


def test_charts_go_on_while_a_loader_is_made_in_a_saturated_loop(lab: Lab, images: Path) -> None:
    """The document with the new loader takes seconds to be made beside it."""
    made = LOADER.format(root=str(images))
    imports = "import torch, torchvision\nfrom kernel_monitor import switchable"
    lab.show(SHOW, imports, SATURATED + made + "work(until)")
    lab.run_cell(1)
    lab.wait_for_idle()
    before = lab.monitor(CELL, "monitor.schema.version")
    lab.run_cell(2)
    pauses = lab.page.evaluate(
        """async ([where, before]) => {
            const monitor = () => document.querySelector(where).monitor;
            let [drawn, at, worst, changed] = [-1, performance.now(), 0, 0];
            const patience = performance.now() + 40000;
            // Charts that wait for the document stand still from the change on.
            while (performance.now() < (changed ? changed + 7000 : patience)) {
                const now = performance.now();
                const seq = monitor()?.feed?.drawn?.seq ?? -1;
                if (seq !== drawn) {
                    [drawn, at] = [seq, now];
                }
                if (monitor()?.schema?.version !== before) {
                    changed ||= now;
                    worst = Math.max(worst, now - at);
                }
                await new Promise(resolve => setTimeout(resolve, 50));
            }
            return { changed, worst };
        }""",
        [CELL, before],
    )
    print("longest pause of the drawing once the loader was there, ms:", round(pauses["worst"]))
    assert pauses["changed"]
    assert pauses["worst"] < 3000  # it is drawn every 250 ms; 7,000 and more where the charts wait for the document


def test_two_loaders_with_hostile_names(lab: Lab, images: Path) -> None:
    name = '<img src=x onerror="window.hacked=1">$$x$$</script>'
    second = f"\nother = switchable(DataLoader(ImageFolder({str(images)!r}, transform), batch_size=8), name={name!r})\n"
    cell = lab.show(LOADER.format(root=str(images)) + second + SHOW)
    groups = cell.get_by_role("radiogroup")
    expect(groups).to_have_count(1)
    cell.get_by_role("button", name=name).click()
    expect(groups).to_have_count(2)
    cell.get_by_role("radiogroup", name=name).get_by_role("radio", name="dali-cpu", exact=True).click()
    expect(cell).to_contain_text(name)
    expect(cell.locator("img:not([role])")).to_have_count(0)
    assert lab.page.evaluate("() => window.hacked") is None


def test_export_downloads_while_the_cell_runs(lab: Lab, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    cell = lab.show(SHOW, f"import os, time\nwhile not os.path.exists({str(enough)!r}): time.sleep(0.1)")
    lab.run_cell(1)
    lab.wait_for_busy()
    for where in (cell, lab.open_sidebar()):
        target = lab.export(where, tmp_path)
        assert target.suffix == ".html"
        assert "Content-Security-Policy" in target.read_text()
    assert lab.status() == "busy"
    enough.touch()


def test_notebook_7(browser: Browser, tmp_path: Path) -> None:
    with server(tmp_path, "notebook") as running, Lab(browser, running) as lab:
        lab.open(running.notebook("seven.ipynb", SHOW), tree="notebooks")
        lab.run_cell(0)
        lab.wait_running(CELL, 90)
        before = lab.monitor(CELL, "monitor.stats.received")
        time.sleep(2)
        assert lab.monitor(CELL, "monitor.stats.received") >= before + 15
        assert lab.dashboard().get_by_role("button", name="Stop").is_visible()


STEERED = f"""{IMPORTS}
transform = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
data = ImageFolder({{root!r}}, transform)
data.samples = data.samples[:480]
with open({{broken!r}}, "wb") as file:
    file.write(b"no image")
data.samples[100] = ({{broken!r}}, 100)
loader = switchable(DataLoader(data, batch_size=8, num_workers=1), name="train", on_error="skip")
"""
STEERED_LOOP = """
seen = []
for epoch in range(2):
    for images, labels in loader:
        seen += labels.tolist()
        while not os.path.exists({go!r}) and len(seen) > 240:
            time.sleep(0.05)
        time.sleep(0.02)
    state = loader.state()
    print(epoch, state["samples"] + state["skipped"] + state["replaced"] == 480, state["lost"], state["doubled"],
          state["skipped"], state["replaced"] > 0, len(seen))
    seen.clear()
while not os.path.exists({over!r}):
    time.sleep(0.05)
"""


def _knob(lab: Lab, label: str) -> Locator:
    return lab.dashboard().get_by_role("spinbutton", name=label, exact=True)


def test_knobs_and_synthetic_while_the_cell_runs(lab: Lab, images: Path, tmp_path: Path) -> None:
    go, over, broken = tmp_path / "go", tmp_path / "over", tmp_path / "<i>broken.jpg"
    setup = STEERED.format(root=str(images), broken=str(broken)) + SHOW
    loop = STEERED_LOOP.format(go=str(go), over=str(over))
    cell = lab.show(setup, loop, "print(loader.knobs)")
    lab.run_cell(1)
    expect(cell.locator(".km-counter")).to_contain_text("1 skipped", timeout=90_000)
    cell.locator(".km-skips summary").click()
    expect(cell.locator(".km-skips li")).to_contain_text("<i>broken.jpg")

    # A knob by its button, another by keyboard; the kernel's own values are what is shown in the end.
    cell.locator(".km-knobs summary").click()
    expect(_knob(lab, "Workers")).to_have_value("1")
    cell.get_by_role("button", name="More: Workers").click()
    _knob(lab, "Prefetch").fill("3")
    expect(cell.locator(".km-knobs summary")).to_contain_text("Workers 2 · Prefetch 3")
    expect(cell.locator(".km-stepper[aria-busy]")).to_have_count(0)
    # What the kernel refuses goes back, with its words.
    _knob(lab, "Workers").fill("100000")
    expect(cell.get_by_role("alert")).to_contain_text("workers=100000 was not taken")
    cell.get_by_role("button", name="Dismiss").click()
    lab.page.keyboard.press("Tab")
    expect(_knob(lab, "Workers")).to_have_value("2")

    synthetic = cell.get_by_role("radio", name="synthetic", exact=True)
    question = cell.get_by_role("alertdialog")
    synthetic.focus()
    lab.page.keyboard.press("Enter")
    expect(question).to_be_visible()
    expect(question.get_by_role("button", name="Cancel")).to_be_focused()
    lab.page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    expect(synthetic).to_be_focused()
    expect(synthetic).not_to_be_checked()
    synthetic.click()
    question.get_by_role("button", name="Replay").click()
    expect(synthetic).to_be_checked()
    go.touch()
    expect(cell.locator(".km-counter")).to_contain_text("replaced by synthetic", timeout=60_000)
    lab.until(CELL, "monitor.sourceData('bands')?.label?.[0] === 'synthetic'")
    left, right = lab.monitor(CELL, "['left', 'right'].map((side) => monitor.sourceData('bands')[side][0])")
    events = lab.monitor(CELL, "monitor.feed.events")
    (switch,) = [event for event in events if event["kind"] == "switch"]
    assert left == (lab.monitor(CELL, "monitor.schema.origin") + switch["first"]) * 1000
    assert right > left
    assert lab.status() == "busy"
    over.touch()

    lab.page.wait_for_function(
        "() => document.querySelectorAll('.jp-CodeCell')[1].querySelector('.jp-OutputArea').textContent"
        ".split('\\n').some((line) => line.startsWith('1 '))",
        timeout=240_000,
    )
    # Each epoch: the plan is delivered, skipped or replaced, each once.
    first, second = lab.output(1).strip().splitlines()
    assert first == "0 True 0 0 1 True 479"
    assert second == "1 True 0 0 0 True 480"
    lab.wait_for_idle()
    lab.run_cell(2)
    expect(lab.page.locator(".jp-CodeCell").nth(2)).to_contain_text("workers=2, prefetch=3")
    assert lab.errors == []
