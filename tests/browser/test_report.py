"""The exported file in Chromium with the network off: it asks for nothing, breaks no rule of its own, and shows."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bokeh.palettes import Viridis256
from PIL import Image
from playwright.sync_api import Browser, Dialog, FloatRect, Locator, Page, expect

from kernel_monitor.output import write
from kernel_monitor.recorded import Opened
from kernel_monitor.report.page import render
from kernel_monitor.store import LoaderInfo, Snapshot
from kernel_monitor.views.hardware_charts import grouped
from tests.browser.scenes import ORIGIN, machine, run
from tests.record import hostile
from tests.unit.analysis.test_compare_segments import session, state

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"> $$x^2$$ <b>bold</b>"

SOURCE = """async (name) => {
  const chart = Bokeh.documents[0].get_model_by_name(name.split('-')[0]);
  if (chart?.type === 'Figure') {
    Bokeh.index.find_one(chart).el.scrollIntoView({ block: 'center' });
    await new Promise((done) => setTimeout(done, 600));
  }
  const source = Bokeh.documents[0].get_model_by_name(name);
  const plain = (value) => value?.buffer !== undefined || Array.isArray(value) || value?.shape !== undefined
    ? Array.from(value, plain) : Number.isNaN(value) ? null : value;
  return Object.fromEntries(Object.keys(source.data).map((key) => [key, plain(source.data[key])]));
}"""
INTRUDER = """() => {
  const script = document.createElement('script');
  script.textContent = 'document.title = 2';
  document.body.append(script);
}"""
FIGURES = "() => [...Bokeh.documents[0].all_models].filter((m) => m.type === 'Figure').map((m) => m.name)"
RANGES = "() => ['cpu', 'gpu', 'images', 'wait'].map((name) => Bokeh.documents[0].get_model_by_name(name).x_range.id)"
# Colours that a plot's canvases hold, the transparent ones left out.
COLORS = """async (name) => {
  const view = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name(name));
  view.el.scrollIntoView({ block: 'center' });
  await new Promise((done) => setTimeout(done, 400));
  const found = new Set();
  for (const canvas of view.canvas_view.el.shadowRoot.querySelectorAll('canvas')) {
    const { width, height } = canvas;
    const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;
    for (let i = 0; i < data.length; i += 4) {
      if (data[i + 3] === 255) found.add(data[i] * 65536 + data[i + 1] * 256 + data[i + 2]);
    }
  }
  return [...found];
}"""
# Where a moment and a y of a plot lie on the page, in CSS pixels.
PLACE = """async ([name, x, y]) => {
  const view = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name(name));
  view.el.scrollIntoView({ block: 'center' });
  await new Promise((done) => setTimeout(done, 600)); // what was out of sight is drawn when it comes into it
  const box = view.el.getBoundingClientRect();
  const { x_scale, y_scale } = view.frame;
  return [box.left + x_scale.compute(x), box.top + y_scale.compute(y)];
}"""


@dataclass
class Seen:
    """What a page did while it was open."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def run(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def hover(self, chart: str, moment: float, y: float, words: str) -> list[str]:
        """Move the mouse over a place of a plot, and wait for a tooltip with these words; return what tooltips say."""
        self.page.mouse.move(*self.run(PLACE, [chart, moment, y]))
        tooltips = self.page.locator(".km-tooltip:visible")
        expect(tooltips.filter(has_text=words).first).to_be_visible()
        return [" ".join(text.split()) for text in tooltips.all_inner_texts() if text.strip()]

    def fits(self, width: int) -> None:
        """Make the page so narrow, and wait until nothing of it is wider."""
        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.wait_for_function("(width) => document.documentElement.scrollWidth <= width", arg=width)


def bottom(place: Locator) -> float:
    """Where an element ends, from the top of the page, in CSS pixels."""
    box = place.bounding_box()
    assert box is not None
    return box["y"] + box["height"]


def _dismissed(complaints: list[str], dialog: Dialog) -> None:
    complaints.append(f"dialog: {dialog.message}")
    dialog.dismiss()


@contextmanager
def opened(browser: Browser, path: Path, **options: Any) -> Iterator[Seen]:
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900}, **options)
    page = context.new_page()
    seen = Seen(page)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("dialog", partial(_dismissed, seen.complaints))
    page.on("popup", lambda other: seen.complaints.append(f"window: {other.url}"))
    page.on(
        "console",
        lambda message: seen.complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.add_init_script(
        "addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.violatedDirective))"
    )
    try:
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=true]")
        page.wait_for_function("Bokeh.documents[0].is_idle")
        yield seen
    finally:
        context.close()


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return session(cores=4, gpus=1, gap=(5.0, 6.5))


@pytest.fixture(scope="module")
def path(snapshot: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("report") / "run.html", render(snapshot))


def test_it_opens_offline_asks_for_nothing_and_breaks_no_rule(browser: Browser, path: Path) -> None:
    with opened(browser, path) as seen:
        seen.page.wait_for_timeout(300)
        assert seen.requests == [path.as_uri()]
        assert seen.complaints == []


def test_its_policy_is_in_force(browser: Browser, path: Path) -> None:
    with opened(browser, path) as seen:
        seen.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
        seen.run(INTRUDER)
        seen.page.wait_for_timeout(200)
        assert seen.page.title().startswith("Training session of ")
        assert sum(text.startswith("policy: ") for text in seen.complaints) >= 2


def test_the_sources_hold_the_snapshots_values(browser: Browser, path: Path, snapshot: Snapshot) -> None:
    schema, time = snapshot.schema, snapshot.time
    with opened(browser, path) as seen:
        shown = seen.run(SOURCE, "cpu-tiles")
        cells: dict[int, list[int]] = {}
        for x, image in zip(shown["x"], shown["image"], strict=True):
            if x is not None:
                first = round((x / 1000 - schema.origin) / schema.interval)
                cells |= {first + k: list(column) for k, column in enumerate(np.array(image).reshape(4, -1).T.tolist())}
        for moment, row in zip(time, snapshot.values, strict=True):
            slot = int(np.floor(moment / schema.interval))
            assert cells[slot] == [int(row[schema.columns[f"cpu/{core}/busy"]] + 0.5) for core in range(4)]
        assert cells[int(5.75 / schema.interval)] == [255] * 4
        for name, column, series in (("wait-lines", "y0", "wait"), ("wait-lines", "y1", "step")):
            found = seen.run(SOURCE, name)
            values = snapshot.values[:, schema.columns[f"loader/loader-1/{series}"]].tolist()
            points = dict(zip(found["time"], found[column], strict=True))
            assert len(points) == len(time) + 1  # one in the gap, without a value
            for moment, value in zip(time, values, strict=True):
                assert points[(schema.origin + moment) * 1000] == (None if np.isnan(value) else value)
        markers = seen.run(SOURCE, "markers")
        assert markers["label"] == ["→ dali-cpu"]
        assert markers["time"] == [(schema.origin + 22.0) * 1000]


def test_the_canvases_hold_the_colours_of_the_values(browser: Browser, path: Path) -> None:
    with opened(browser, path) as seen:
        colors = {name: set(seen.run(COLORS, name)) for name in ("cpu", "gpu", "images", "wait")}
        assert {int(Viridis256[int(value * 2.56)][1:], 16) for value in (99.9, 61)} <= colors["cpu"]
        for found_colors in colors.values():
            assert len(found_colors) > 2


def test_tables_and_headings_are_there(browser: Browser, path: Path) -> None:
    with opened(browser, path) as seen:
        headings = seen.page.get_by_role("heading", level=2).all_inner_texts()
        assert {"Percentiles", "Segment by segment", "Data loading"} <= set(headings)
        table = seen.page.get_by_role("group", name="Percentiles of train/1 and train/2")
        row = table.get_by_role("row").filter(has_text="CPU busy")
        assert row.get_by_role("cell").all_inner_texts()[-6:] == ["100"] * 6


def test_hover_names_core_time_and_value_and_says_where_nothing_was_sampled(
    browser: Browser, path: Path, snapshot: Snapshot
) -> None:
    origin = snapshot.schema.origin
    with opened(browser, path) as seen:
        for moment, row, words in ((10.04, 2, "core 2: 100 %"), (5.75, 1, "core 1: no sample")):
            (text,) = seen.hover("cpu", (origin + moment) * 1000, row + 0.5, words)
            assert text.endswith(words)
            then = datetime.fromtimestamp(origin + moment).astimezone()
            assert f"{then:%H:%M:%S}." in text
        said = seen.hover("wait", (origin + 10.0) * 1000, 55.0, "waiting for data")
        assert any("waiting for data" in text and "60 ms" in text for text in said)


def test_buttons_and_dragging_move_every_chart(browser: Browser, path: Path) -> None:
    shown = "(() => { const t = Bokeh.documents[0].get_model_by_name('time'); return [t.start, t.end]; })()"
    with opened(browser, path) as seen:
        whole = seen.run(shown)
        seen.page.get_by_role("button", name="Zoom in").click()
        start, end = seen.run(shown)
        assert end - start == pytest.approx((whole[1] - whole[0]) / 2)
        x, y = seen.run(PLACE, ["images", (start + end) / 2, 100])
        seen.page.mouse.move(x, y)
        seen.page.mouse.down()
        seen.page.mouse.move(x - 100, y, steps=4)
        seen.page.mouse.up()
        assert seen.run(shown)[0] > start
        ranges = seen.run(RANGES)
        assert len(set(ranges)) == 1
        seen.page.get_by_role("button", name="All").click()
        seen.page.wait_for_function(f"(whole) => {shown}.every((end, k) => end === whole[k])", arg=whole)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_button(browser: Browser, path: Path, scheme: str) -> None:
    label = "Bokeh.documents[0].get_model_by_name('cpu').left[0].major_label_text_color"
    paper = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, path, color_scheme=scheme) as seen:
        title = seen.page.get_by_text("CPU busy, % per core", exact=True)
        ink = "(title) => getComputedStyle(title).color"
        before = (seen.run(label), seen.run(paper), title.evaluate(ink))
        assert (before[1] == "rgb(18, 21, 26)") == (scheme == "dark")
        button = seen.page.get_by_role("button", name="Dark")
        assert button.get_attribute("aria-pressed") == str(scheme == "dark").lower()
        button.click()
        after = (seen.run(label), seen.run(paper), title.evaluate(ink))
        assert all(one != other for one, other in zip(before, after, strict=True))


def test_hostile_names_are_text_everywhere(browser: Browser, tmp_path: Path) -> None:
    snapshot = session(gpus=1, names=(HOSTILE, "check"))
    snapshot = replace(
        snapshot,
        schema=replace(
            snapshot.schema,
            loaders=(LoaderInfo("loader-1", HOSTILE), LoaderInfo("loader-2", "check")),
            gpus=(replace(snapshot.schema.gpus[0], name=HOSTILE),),
        ),
        events=[
            *snapshot.events,
            {"id": 9, "kind": "switch-failed", "time": 4.0, "loader": "loader-1", "message": f"no {HOSTILE}.jpg"},
        ],
        loaders=[state(name=HOSTILE)],
    )
    with opened(browser, write(tmp_path / "hostile.html", render(snapshot))) as seen:
        said = seen.hover("wait", (snapshot.schema.origin + 10.0) * 1000, 55.0, HOSTILE)
        assert any(HOSTILE in text for text in said)
        assert HOSTILE in seen.page.locator("main").inner_text()
        assert seen.page.locator("img").count() == 0
        assert seen.page.title().startswith("Training session of ")
        assert seen.requests == [(tmp_path / "hostile.html").as_uri()]
        assert seen.complaints == []


ATTACKS = (
    "</script><script>window.owned = 1; alert(1)</script>",
    "--><!--<script>window.owned = 1</script>]]></textarea></style></title><svg onload='window.owned = 1'>",
    "<iframe srcdoc='<script>parent.owned = 1</script>'></iframe><object data='data:text/html,x'></object>",
    "<base href='https://evil.example/'><link rel=stylesheet href='https://evil.example/x.css'>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'><form action='https://evil.example'><input>",
    '" onmouseover="window.owned = 1" autofocus onfocus="window.owned = 1" x="',
    "javascript:window.owned=1 //{{ 7 * 191 }} ${7 * 191} {% raw %} $$\\href{javascript:window.owned=1}{x}$$",
    "\u202egpj.exe \u2066x\u2069 \u2028\u2029",
    "nul\0 \x1b[2J bell\a \ud800",
    "<b>" + "x" * 1_000_000,
)
NAMED = {
    "action", "backend", "basis", "cause", "cpu_model", "currency", "encoder", "label", "message", "name", "note",
    "path", "platform", "python", "reason", "source", "status", "target", "torch", "transform",
}  # fmt: skip


def attacked(path: Path) -> None:
    """A recording in which every name is an attack: of loaders, engines, transforms, files, GPUs, the host, marks."""
    hostile.base(path, rows=200)
    turns, chosen = cycle(ATTACKS), dict[str, str]()

    def attack(text: str) -> str:
        if text not in chosen:
            chosen[text] = next(turns)
        return chosen[text]

    def changed(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: changed(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [attack(inner) if isinstance(inner, str) else changed(inner) for inner in value]
        return attack(value) if isinstance(value, str) and key in NAMED else value

    with closing(sqlite3.connect(path)) as connection:
        for table, column, key in (("meta", "value", "key"), ("events", "event", "id"), ("hellos", "hello", "id")):
            for which, text in connection.execute(f"SELECT {key}, {column} FROM {table}").fetchall():  # noqa: S608
                value = json.loads(text)
                if isinstance(value, dict | list):
                    new: Any = changed(value)
                    if isinstance(value, dict) and "series" in value:
                        new = {**changed({**value, "series": None}), "series": value["series"]}
                    statement = f"UPDATE {table} SET {column} = ? WHERE {key} = ?"  # noqa: S608
                    connection.execute(statement, (json.dumps(new), which))
        connection.commit()
    assert {*chosen.values()} == {*ATTACKS}


def test_a_recording_full_of_attacks_is_a_report_that_does_nothing(browser: Browser, tmp_path: Path) -> None:
    attacked(tmp_path / "attack.kmsession")
    path = write(tmp_path / "attack.html", Opened().open(tmp_path / "attack.kmsession").render())
    assert path.stat().st_size < 20e6
    with opened(browser, path) as seen:
        for place in ("details", "summary", "[tabindex]", "button"):
            for found in seen.page.locator(place).all()[:20]:
                if found.is_visible():
                    found.hover(timeout=5000)
        text = seen.page.locator("main").inner_text()
        assert sum(attack[:40] in text for attack in ATTACKS) >= 4  # they are shown, as text
        assert "1337" not in text
        assert not set("\0\x1b\a") & set(text)
        assert seen.run("[window.owned, document.scripts.length]") == [None, 3]
        odd = "iframe, object, embed, base, link, form, meta[http-equiv=refresh], [onload], [onmouseover], [onfocus]"
        assert seen.page.locator(odd).count() == 0
        assert seen.page.url == path.as_uri()
        assert seen.requests == [path.as_uri()]
        assert seen.complaints == []


def test_without_a_gpu_the_chart_gives_the_reason(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, write(tmp_path / "run.html", render(session()))) as seen:
        assert "none: NVML Shared Library Not Found" in seen.page.locator("#machine dl").inner_text()
        seen.page.get_by_text("No NVIDIA GPU: NVML not found").first.wait_for()
        assert seen.complaints == []


# -- machines that are not at hand ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """256 cores in four sockets with eight NUMA nodes, of which cores 0 to 63 may be used, and eight GPUs."""
    machine_ = machine(nodes=8, allowed=list(range(64)), quota=48.0, interval=0.5)
    return write(tmp_path_factory.mktemp("big") / "big.html", render(run(machine_, seconds=60.0)))


def test_256_cores_are_named_by_socket_and_node_and_grayed_where_they_may_not_be_used(
    browser: Browser, big: Path
) -> None:
    cores, _ = grouped(machine(nodes=8))
    free, taken = cores.index(3), cores.index(243)
    with opened(browser, big) as seen:
        assert seen.page.locator("#charts").get_by_text("this process may use 64 of 256 cores, quota 48").is_visible()
        pixels = []
        for row, words in ((free, "core 3 · socket 0 · NUMA 0"), (taken, "core 243 · socket 3 · NUMA 7 · not for")):
            place = seen.run(PLACE, ["cpu", (ORIGIN + 10.3) * 1000, row + 0.5])
            around: FloatRect = {"x": place[0] - 20, "y": place[1] - 0.5, "width": 40, "height": 1}
            image = Image.open(io.BytesIO(seen.page.screenshot(clip=around))).convert("RGB")
            pixels.append(np.asarray(image, dtype=float).mean(axis=(0, 1)))
            (text,) = seen.hover("cpu", (ORIGIN + 10.3) * 1000, row + 0.5, words)
            assert words in text
            seen.page.mouse.move(2, 2)
            seen.page.wait_for_timeout(100)
        # Both are as busy; the gray takes most of the yellow's colour away.
        chroma = [float(pixel.max() - pixel.min()) for pixel in pixels]
        assert chroma[1] < 0.7 * chroma[0], pixels
        assert seen.complaints == []


def test_the_hover_over_lines_names_the_line_and_its_value(browser: Browser, tmp_path: Path) -> None:
    snapshot = run(machine(cores=2, sockets=1, nodes=1, gpus=8), seconds=20.0)
    columns = snapshot.schema.columns
    for gpu in range(8):
        snapshot.values[:, columns[f"gpu/{gpu}/pcie_received"]] = 1e9 * (gpu + 1)
        snapshot.values[:, columns[f"gpu/{gpu}/pcie_sent"]] = 1e7
    snapshot.values[:, columns["memory/percent"]] = 42.0
    snapshot.values[:, columns["memory/used"]] = 6.75e9
    with opened(browser, write(tmp_path / "lines.html", render(snapshot))) as seen:
        for chart, value, words in (
            ("gpu-pcie", 6e9, "GPU 5, received"),
            ("gpu-pcie", 6e9, "6.00 GB/s"),
            ("memory", 42.0, "42 % · 6.75 GB"),
        ):
            seen.hover(chart, (snapshot.schema.origin + 8.0) * 1000, value, words)
        assert seen.complaints == []


def test_every_chart_is_drawn_and_fits_a_narrow_screen(browser: Browser, big: Path) -> None:
    with opened(browser, big) as seen:
        names = seen.run(FIGURES)
        assert len(names) == len(set(names)) >= 18
        for name in names:
            assert len(seen.run(COLORS, name)) > 1, name
        seen.fits(280)
        # Titles and legends wrap: none is cut off at the right.
        cut = seen.page.locator(".bk-Pane > div").evaluate_all(
            "(all) => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"
        )
        assert cut == []


def test_a_recorded_session_says_so_on_top(browser: Browser, tmp_path: Path) -> None:
    snapshot = run(machine(cores=2, sockets=1, nodes=1, gpus=0), seconds=12.0)
    told = {"ended": None, "live": False, "bin_s": None, "rows": 120}
    recorded = replace(snapshot, facts={**snapshot.facts, "recorded": told})
    with opened(browser, write(tmp_path / "recorded.html", render(recorded))) as seen:
        assert seen.page.title().startswith("Recorded session of ")
        assert "ended without goodbye" in seen.page.locator(".measured").inner_text()
        assert seen.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_has_the_three_answers_and_the_picture(browser: Browser, path: Path, scheme: Any) -> None:
    with opened(browser, path, color_scheme=scheme) as seen:
        page = seen.page
        page.set_viewport_size({"width": 1280, "height": 720})
        for question, answer in (
            ("What held the training up", "60 % of each step was waiting for data"),
            ("What was changed", "train: torchvision → dali-cpu"),
            ("What it brought", "3.00 × faster: 320 → 960 images/s"),
        ):
            assert bottom(page.locator(".answers > div", has_text=question).locator("b", has_text=answer)) < 720
        drawn = page.locator(".around svg")
        assert "from torchvision to dali-cpu" in str(drawn.get_attribute("aria-label"))
        assert bottom(drawn) < 720
        # The cores were full before the line and at 61 % after it: yellow, then green.
        shot = Image.open(io.BytesIO(drawn.locator("image").first.screenshot())).convert("RGB")
        for place, cell in ((0.2, Viridis256[-1]), (0.8, Viridis256[156])):
            color = np.array(shot.getpixel((round(place * shot.width), shot.height // 2)))
            assert np.abs(color - [int(cell[k : k + 2], 16) for k in (1, 3, 5)]).max() < 12
        for width in (640, 260):
            seen.fits(width)
            cut = """() => [...document.querySelectorAll('#summary *')].filter((e) => {
              const box = e.getBoundingClientRect();
              return box.width > 0 && !e.closest('.unseen') && (box.left < 0 || box.right > innerWidth + 1);
            }).map((e) => e.textContent)"""
            assert seen.run(cut) == []
        assert not seen.complaints
