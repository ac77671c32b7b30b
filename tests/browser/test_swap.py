"""The whole path under load: two pages of one kernel, a cell that holds the GIL, clicks, nothing lost.

Six clicks over two epochs; `make test-long` sets CLICKS=30.
"""

from __future__ import annotations

import ast
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.noise import BareTimer

from .lab import CELL, IMPORTS, SHOW, SIDEBAR, Lab, Server

CLICKS = int(os.environ.get("CLICKS", "6"))
ALONE = 30  # so many clicks are made without other tests beside them
IMAGES = min(1280, 64 * CLICKS)
SETUP = f"""{IMPORTS}
import threading
torch.set_num_threads(1)
transform = transforms.Compose([
    transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
    transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
])
data = ImageFolder({{root!r}}, transform)
data.samples = data.samples[:{{images}}]
loader = switchable(DataLoader(data, batch_size=8, shuffle=True, num_workers=1), name="train")
{SHOW}
"""
# The main thread trains and burns the rest of each step in pure Python; a second thread spins: the GIL is never free.
TRAIN = """
done = threading.Event()
def spin():
    while not done.is_set():
        sum(range(500))
threading.Thread(target=spin, daemon=True).start()
model = torch.nn.Linear(3 * 64 * 64, 4)
delivered = []
for epoch in range(8):
    if epoch >= 2 and os.path.exists({enough!r}):
        break  # two epochs are what is asked for; on a slow machine the clicks take longer
    seen = []
    for images, labels in loader:
        until = time.perf_counter() + {step}
        model(images.flatten(1)).sum().backward()
        seen += labels.tolist()
        while time.perf_counter() < until:
            sum(range(500))
    delivered.append(seen)
done.set()
print("finished")
"""
VERDICT = """
print([[seen == list(loader.plan(k)), sorted(seen) == list(range(len(data)))] for k, seen in enumerate(delivered)])
print(*[loader.decoded(k) for k in range(len(delivered))])
"""
WATCH_STATUS = """() => {
    const seen = (window.kernelStatuses = []);
    const read = () => {
        for (const node of document.querySelectorAll('.jp-Notebook-ExecutionIndicator')) {
            const now = node.getAttribute('data-status');
            if (seen[seen.length - 1] !== now) seen.push(now);
        }
        for (const node of document.querySelectorAll('#jp-bottom-panel *, #jp-main-statusbar *')) {
            const text = node.childElementCount === 0 ? node.textContent : '';
            const match = /\\| *(Busy|Idle|Unknown|Connecting)/.exec(text);
            if (match && seen[seen.length - 1] !== match[1].toLowerCase()) seen.push(match[1].toLowerCase());
        }
    };
    read();
    window.statusObserver = new MutationObserver(read);
    window.statusObserver.observe(document.body,
        { subtree: true, attributes: true, attributeFilter: ['data-status'], childList: true, characterData: true });
}"""


def _click(lab: Lab, place: Locator, backend: str) -> float:
    """Click a radio; returns the milliseconds until the kernel's acknowledgement, measured in the page."""
    radio = place.get_by_role("radiogroup", name="Loader").get_by_role("radio", name=backend, exact=True)
    radio.evaluate("(el) => { delete el.dataset.acknowledged; }")
    radio.click()
    lab.page.wait_for_function("(el) => el.dataset.acknowledged !== undefined", arg=radio.element_handle(), polling=20)
    return float(radio.get_attribute("data-acknowledged") or "nan")


def _settled(lab: Lab, backend: str) -> None:
    lab.page.wait_for_function(
        "(backend) => [...document.querySelectorAll('.km-dashboard')].every("
        "(el) => el.querySelector('[role=status]').textContent.includes(backend + ' since batch'))",
        arg=backend,
        polling=50,
    )


@pytest.mark.parametrize("kernel", ["python3", "python3-ipykernel6"])
def test_clicks_in_a_busy_cell(browser: Browser, lab_server: Server, images: Path, tmp_path: Path, kernel: str) -> None:
    enough = tmp_path / "enough"
    with Lab(browser, lab_server) as lab:
        train = TRAIN.format(step=0.2, enough=str(enough))
        lab.show(SETUP.format(root=str(images), images=IMAGES), train, VERDICT, kernel=kernel)
        lab.open_sidebar()
        lab.wait_running(SIDEBAR)
        lab.wait_for_idle()
        lab.run_cell(1)
        cell, sidebar = lab.dashboard(CELL), lab.dashboard(SIDEBAR)
        cell.get_by_text("epoch 1").first.wait_for()
        for where in (CELL, SIDEBAR):
            lab.until(where, "monitor.stats.received > argument + 15", lab.monitor(where, "monitor.stats.received"))
        for where in (CELL, SIDEBAR):
            lab.monitor(where, "monitor.resetStats()")
        lab.page.evaluate(WATCH_STATUS)
        begun = time.monotonic()

        acknowledged = []
        with BareTimer() as timer:
            for number in range(CLICKS):
                if number == CLICKS // 2:
                    cell.get_by_text("epoch 2").first.wait_for()
                backend = "dali-cpu" if number % 2 == 0 else "torchvision"
                acknowledged.append(_click(lab, sidebar if number % 4 in (1, 2) else cell, backend))
                _settled(lab, backend)

        lasted = time.monotonic() - begun
        statuses = lab.page.evaluate("() => { window.statusObserver.disconnect(); return window.kernelStatuses; }")
        stats = {where: lab.monitor(where, "monitor.stats") for where in (CELL, SIDEBAR)}
        assert "finished" not in lab.output(1), "the training ended before the last click: nothing was proved"
        enough.touch()
        _check_charts(lab)
        events = lab.monitor(CELL, "monitor.feed.events")

        lab.wait_printed(1, "finished", 240)
        lab.wait_for_idle()
        lab.run_cell(2)
        lab.page.wait_for_function(
            "() => document.querySelectorAll('.jp-CodeCell')[2].querySelector('.jp-OutputArea-output')"
        )
        lab.wait_for_idle()
        verdict, decoded = lab.output(2).strip().splitlines()[:2]

        p50, p95, longest = (round(float(np.percentile(acknowledged, q))) for q in (50, 95, 100))
        print(f"{kernel}: {CLICKS} clicks acknowledged after p50 {p50}, p95 {p95}, at most {longest} ms; {decoded}")
        print(f"  a bare timer beside it is late by p50 {timer.late(50):.1f}, p95 {timer.late(95):.1f} ms")
        for where, stat in stats.items():
            rate, age = stat["received"] / lasted, np.percentile(stat["ages"], 95)
            print(f"  {where}: {rate:.1f} frames/s, {stat['missed']} missed, age p95 {age:.0f} ms")
        print(f"  kernel status: {', '.join(statuses)}")

        found = ast.literal_eval(verdict)
        assert len(found) >= 2
        assert found == [[True, True]] * len(found)
        for dashboard in (cell, sidebar):
            dashboard.locator(".km-counter").scroll_into_view_if_needed()  # a dashboard out of sight is sent nothing
            expect(dashboard.locator(".km-counter")).to_contain_text(f"{IMAGES:,} of {IMAGES:,} samples, each once")
        assert set(statuses) == {"busy"}
        for where, stat in stats.items():
            assert stat["missed"] == 0, where
            # The bars are nine frames a second, 500 ms and 150 ms at p95, on a quiet machine. What was
            # reached is printed above. A click goes through four processes, each as late as the machine lets it be.
            assert stat["received"] / lasted >= 4.0, where
            assert np.percentile(stat["ages"], 95) <= 1500, where
        # Beside other tests, ten times the bar.
        assert np.percentile(acknowledged, 95) <= (450 + 4 * timer.late(95) if CLICKS >= ALONE else 1500)
        _check_switches(events)
        assert lab.errors == []


def _check_switches(events: list[dict[str, Any]]) -> None:
    """Two of three clicks switch, over two epochs; from ready, the first batch within those in flight plus one."""
    switches = [event for event in events if event["kind"] == "switch"]
    assert len(switches) >= 2 * CLICKS // 3
    assert {event["epoch"] for event in switches} >= {0, 1}
    ready = [event for event in events if event["kind"] == "engine-ready"]
    assert len(ready) >= len(switches)
    for switch in switches:
        assert switch["waited"] <= switch["in_flight"] + 1, switch


def _check_charts(lab: Lab) -> None:
    """What a view draws is what the other one is sent under that sequence number, and it changes."""
    # Each view draws when it has the time, so they seldom draw the same row.
    drawn_by = lab.page.evaluate(
        """(places) => new Promise((resolve) => {
            const monitors = places.map((where) => document.querySelector(where).monitor);
            const sent = places.map(() => new Map());
            const drawn = places.map(() => new Map());
            monitors.forEach(({ source }, i) => source.arrived.on(({ schema, seq, values }) => {
                const width = schema.series.length;
                Array.from(seq).forEach((number, row) => {
                    sent[i].set(number, Array.from(values.slice(row * width, (row + 1) * width)));
                });
            }));
            const until = performance.now() + 60_000;
            const look = () => {
                monitors.forEach(({ feed }, i) => drawn[i].set(feed.drawn.seq, Array.from(feed.drawn.values)));
                const pairs = drawn.map((rows, i) => [...rows].flatMap(([seq, values]) =>
                    sent[1 - i].has(seq) ? [[seq, values, sent[1 - i].get(seq)]] : []));
                if (pairs.every((found) => found.length >= 3) || performance.now() > until) {
                    resolve(pairs);
                } else {
                    requestAnimationFrame(look);
                }
            };
            look();
        })""",
        [CELL, SIDEBAR],
    )
    for pairs in drawn_by:
        assert len(pairs) >= 3, "a view stood still, or the other was sent none of its rows"
        for seq, drawn, sent in pairs:
            assert _same(drawn, sent), seq
        assert len({json.dumps(drawn) for _, drawn, _ in pairs}) > 1, "live values change"


def _same(a: list[float], b: list[float]) -> bool:
    return bool(np.array_equal(np.array(a, float), np.array(b, float), equal_nan=True))
