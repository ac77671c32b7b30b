"""The exported page: sources equal the snapshot, text is text, the policy fits, files are whole or absent."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_monitor.errors import MonitorError
from kernel_monitor.report import render, write
from kernel_monitor.report.client import render_in_process
from kernel_monitor.report.fill import bands, lines, markers, means, tiles
from kernel_monitor.report.privacy import without_paths
from kernel_monitor.store import LoaderInfo, Snapshot, Store
from tests.unit.test_diagnose import found, session, state

HOSTILE = "</script><script>document.title='owned'</script><b title=\"x\" onmouseover='y'>&amp; $$x$$"


class Page(HTMLParser):
    """The page as a browser cuts it up: visible text, elements, and scripts with their types."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self._inside: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = tag
            if tag == "script":
                self.scripts.append((dict(attrs).get("type"), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            kind, before = self.scripts[-1]
            self.scripts[-1] = (kind, before + data)
        elif self._inside is None:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def policy(self) -> str:
        return next(
            str(attributes["content"])
            for _, attributes in self.elements
            if attributes.get("http-equiv") == "Content-Security-Policy"
        )


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(session(gpus=1)))


def hostile() -> Snapshot:
    snapshot = session(gpus=1)
    schema = replace(
        snapshot.schema,
        loaders=(LoaderInfo("loader-1", HOSTILE),),
        gpus=(replace(snapshot.schema.gpus[0], name=HOSTILE),),
        host={**snapshot.schema.host, "cpu_model": HOSTILE, "platform": HOSTILE + "\udcff\x00"},
    )
    failed = {"id": 9, "kind": "switch-failed", "time": 3.0, "loader": "loader-1", "message": f"{HOSTILE}.jpg"}
    return replace(
        snapshot,
        schema=schema,
        events=[*snapshot.events, failed],
        loaders=[state(name=HOSTILE, decoded={HOSTILE: 3})],
        facts={"versions": {HOSTILE: HOSTILE}},
    )


# -- sources ----------------------------------------------------------------------------------------------------------


def test_tiles_are_the_rows_on_the_absolute_grid() -> None:
    snapshot = session(gap=(5.0, 6.5))
    rows = ["cpu/0/busy", "cpu/1/iowait", "no/such/series"]
    data = tiles({"rows": rows, "slots": 60}, snapshot)
    width = 60 * 0.1
    expected: dict[tuple[int, int, int], int] = {}
    for moment, values in zip(snapshot.time, snapshot.values, strict=True):
        slot = int(np.floor(moment / 0.1))
        for row, name in enumerate(rows[:2]):
            expected[slot // 60, row, slot % 60] = int(np.floor(values[snapshot.schema.columns[name]] + 0.5))
    assert len(data["image"]) == len({tile for tile, _, _ in expected})
    for k, image in enumerate(data["image"]):
        assert (image.dtype, image.shape) == (np.uint8, (3, 60))
        number = round((data["x"][k] / 1000 - snapshot.schema.origin) / width)
        for row in range(3):
            for slot in range(60):
                assert image[row, slot] == expected.get((number, row, slot), 255)
    assert set(data["dw"]) == {width * 1000}
    assert set(data["dh"]) == {3.0}
    assert set(data["y"]) == {0.0}


def test_a_tile_without_a_row_is_no_tile_and_values_are_cut_to_the_scale() -> None:
    store = Store(interval=0.1)
    store.set_host(
        {
            "interval": 0.1,
            "series": [{"name": "gpu/0/power", "unit": "%"}],
            "cpus": [],
            "gpus": [],
            "gpu_reason": None,
            "host": {},
        }
    )
    for moment, value in ((0.05, 103.0), (0.15, 49.5), (0.25, np.nan), (60.05, -1.0)):
        store.append(moment, [value])
    data = tiles({"rows": ["gpu/0/power"], "slots": 60}, store.snapshot([], {}))
    assert [image[0, :3].tolist() for image in data["image"]] == [[100, 50, 255], [0, 255, 255]]
    assert np.diff(data["x"]).tolist() == pytest.approx([60_000.0])


def test_lines_are_the_series_with_a_break_in_each_gap() -> None:
    snapshot = session(gap=(5.0, 6.5))
    data = lines({"columns": {"y0": "loader/loader-1/images", "y1": "loader/loader-1/wait"}}, snapshot)
    (place,) = np.flatnonzero(np.diff(snapshot.time) > 0.15) + 1
    assert np.isnan(data["y0"][place])
    assert np.isnan(data["y1"][place])
    assert snapshot.time[place - 1] < data["time"][place] / 1000 - snapshot.schema.origin < snapshot.time[place]
    for column, name in (("y0", "loader/loader-1/images"), ("y1", "loader/loader-1/wait")):
        stored = snapshot.values[:, snapshot.schema.columns[name]]
        assert np.array_equal(np.delete(data[column], place), stored, equal_nan=True)
    np.testing.assert_allclose(np.delete(data["time"], place) / 1000 - snapshot.schema.origin, snapshot.time, atol=1e-6)


def test_means_are_of_the_last_seconds_since_the_last_gap() -> None:
    snapshot = session(gap=(5.0, 6.5), pause=4.0)
    data = means({"columns": {"y0": "loader/loader-1/wait"}, "seconds": 2.0}, snapshot)
    stored = snapshot.values[:, snapshot.schema.columns["loader/loader-1/wait"]].astype(float)
    (place,) = np.flatnonzero(np.diff(snapshot.time) > 0.15) + 1
    shown = np.delete(data["y0"], place)
    for k, moment in enumerate(snapshot.time):
        begin = place if k >= place else 0
        window = [
            value
            for value, at in zip(stored[begin : k + 1], snapshot.time[begin : k + 1], strict=True)
            if at > moment - 2.0 and np.isfinite(value)
        ]
        if window:
            assert shown[k] == pytest.approx(np.mean(window))
        else:
            assert np.isnan(shown[k])
    assert np.isnan(shown).any()
    assert np.isfinite(shown).any()


def test_markers_stand_where_the_first_batch_came() -> None:
    snapshot = session()
    data = markers({"events": ["switch"]}, snapshot)
    assert data["label"] == ["→ dali-cpu"]
    assert data["time"].tolist() == [(snapshot.schema.origin + 22.0) * 1000]
    several = session(names=("train", "check"))
    assert markers({"events": ["switch"]}, several)["label"] == ["train → dali-cpu"]


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_says_what_was_measured_where(page: Page) -> None:
    snapshot = session(gpus=1)
    for words in (
        "Some CPU, 2 logical cores",
        "64.0 GB",
        "NVIDIA H200 (150.0 GB)",
        "python 3.11.4, kernel-monitor 0.1.0, torch 2.15.0",
        found(snapshot)["text"],
        "torchvision → dali-cpu",
        "6,784 of 20,480",
        "64 by torchvision, 6,720 by dali-cpu",
        "2,000 ms",
    ):
        assert " ".join(words.split()) in page.text
    assert "none: Driver Not Loaded" in Page(render(no_gpu("Driver Not Loaded"))).text


def no_gpu(reason: str) -> Snapshot:
    snapshot = session()
    return replace(snapshot, schema=replace(snapshot.schema, gpu_reason=reason))


def test_the_percentiles_before_and_after_are_in_the_table(page: Page) -> None:
    assert "p50 before p50 after p95 before p95 after p99 before p99 after" in page.text
    assert "CPU busy, mean of the cores % 100 61 100 61 100 61" in page.text
    assert "Data wait per step ms 60 5 60 5 60 5" in page.text
    assert "GPU utilisation % 31 88 31 88 31 88" in page.text


def test_only_the_pages_own_two_scripts_may_run(page: Page) -> None:
    policy = dict(part.strip().split(" ", 1) for part in page.policy.split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["img-src"] == "data:"
    assert "unsafe-inline" not in policy["script-src"]
    assert "unsafe-eval" not in policy["script-src"]
    running = [text for kind, text in page.scripts if kind != "application/json"]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running]
    assert policy["script-src"].split() == [f"'sha256-{one}'" for one in hashes]
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "action"} & set(attributes), tag
        assert tag not in ("link", "iframe", "object", "base")


def test_names_with_markup_are_text() -> None:
    page = Page(render(hostile()))
    clean = Page(render(session(gpus=1)))
    assert [kind for kind, _ in page.scripts] == [kind for kind, _ in clean.scripts]
    assert not [tag for tag, attributes in page.elements if "onmouseover" in attributes]
    assert page.text.count(HOSTILE) >= 6
    data = next(text for kind, text in page.scripts if kind == "application/json")
    assert not set("<>&") & set(data)
    assert json.dumps(HOSTILE)[1:-1] in json.dumps(json.loads(data))


def test_no_path_user_or_environment_is_in_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_MONITOR_SECRET", "a-secret-of-the-environment")
    path = "/home/somebody/data/class one/cat.jpg"
    snapshot = replace(
        session(),
        events=[
            {"id": 1, "kind": "switch-failed", "time": 1.0, "loader": "loader-1", "message": f"cannot read {path}"}
        ],
        loaders=[state(status=f"dali-cpu failed: {path}; torchvision goes on")],
        facts={"environment": sys.prefix, "user": "somebody"},
    )
    html = render(snapshot)
    assert "cannot read" in html
    assert "cat.jpg" in html
    for secret in ("somebody", "a-secret-of-the-environment", sys.prefix, str(Path.cwd())):
        assert secret not in html


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("cannot read /data/set/n01/cat.jpg: truncated", "cannot read …/cat.jpg: truncated"),
        ("('/home/me/x.jpg',)", "('~/x.jpg',)"),
        ("in /home/me", "in ~"),
        ("see file:///srv/a/b.png", "see …/b.png"),
        (r"C:\Users\me\x.jpg failed", r"~\x.jpg failed"),
        (r"D:\data\x.jpg", "…/x.jpg"),
        ("412 images/s and 1/2 and </b></i>", "412 images/s and 1/2 and </b></i>"),
        ("https://example.org/a/b", "https://example.org/a/b"),
    ],
)
def test_paths_are_cut_to_their_last_part(text: str, left: str) -> None:
    assert without_paths(text) == left


def test_a_session_without_rows_or_switches_has_a_page() -> None:
    empty = Page(render(Store(origin=1.79e9).snapshot([], {})))
    assert "no sample" in empty.text
    plain = Page(render(session(switch=False)))
    assert "Percentiles of the session" in plain.text
    assert "What the switch changed" not in plain.text


def test_earlier_epochs_have_their_rows() -> None:
    counts = {"samples": 20381, "planned": 20480, "skipped": 3, "replaced": 96, "lost": 0, "doubled": 0}
    first = {"epoch": 0, **counts, "decoded": {"torchvision": 20381}}
    text = Page(render(replace(session(), loaders=[state(epochs=[first])]))).text
    assert "train 1 20,381 of 20,480 3 96 0 0 20,381 by torchvision train 2 6,784 of 20,480" in text


def replayed(*, end: bool, names: tuple[str, ...] = ("train",)) -> Snapshot:
    """A session that goes on with replayed batches at 22 s, until 30 s or the last delivery."""
    snapshot = session(names=names, idle=5.0)
    events = [
        {**event, "target": "synthetic"} if event["kind"].startswith("switch") else event for event in snapshot.events
    ]
    if end:
        back = {"loader": "loader-1", "source": "synthetic", "target": "dali-cpu", "epoch": 0, "batch": 500}
        events.append({"id": 99, "kind": "switch", "time": 30.0, "asked": 29.9, "first": 30.0, **back})
    return replace(snapshot, events=events)


@pytest.mark.parametrize(("end", "until"), [(True, 30.0), (False, 41.93)])
def test_replayed_batches_are_banded_from_their_first_to_the_next_switch_or_the_last_delivery(
    end: bool, until: float
) -> None:
    snapshot = replayed(end=end)
    data = bands({"backend": "synthetic"}, snapshot)
    seconds = {side: (data[side] / 1000 - snapshot.schema.origin).tolist() for side in ("left", "right", "place")}
    assert seconds == {
        "left": [pytest.approx(22.0)],
        "right": [pytest.approx(until, abs=1e-3)],
        "place": [pytest.approx(22.0)],
    }
    assert data["label"] == ["synthetic"]
    assert bands({"backend": "synthetic"}, replayed(end=end, names=("train", "val")))["label"] == ["train synthetic"]


def test_the_page_says_which_figures_are_of_replayed_batches() -> None:
    text = Page(render(replayed(end=False))).text
    assert "the figures after the switch are of replayed batches" in text
    assert "hatched stretches replayed batches" in text
    assert "the figures before the switch are of replayed batches" in Page(render(replayed(end=True))).text
    plain = Page(render(session())).text
    assert "replayed" not in plain


def test_skipped_samples_are_listed_as_text_without_folders() -> None:
    skip = {"index": 1612, "path": f"/home/somebody/data/{HOSTILE.replace('/', '|')}.jpg", "reason": HOSTILE}
    page = Page(render(replace(session(), loaders=[state(skipped=1, skips=[skip])])))
    assert "Skipped samples" in page.text
    assert "1,612" in page.text
    assert page.text.count("$$x$$") == 2
    assert "somebody" not in page.text
    assert not [tag for tag, attributes in page.elements if "onmouseover" in attributes]
    assert "Skipped samples" not in Page(render(session())).text


def test_changed_knobs_and_cancelled_switches_are_in_the_list() -> None:
    events = [
        {"id": 7, "kind": "knobs", "time": 3.0, "loader": "loader-1", "workers": 4, "prefetch": 2, "threads": None},
        {
            "id": 9,
            "kind": "knobs",
            "time": 3.5,
            "loader": "loader-1",
            "workers": 2,
            "prefetch": 2,
            "threads": 3,
            "message": "not enough memory",
        },
        {"id": 8, "kind": "switch-cancelled", "time": 4.0, "loader": "loader-1", "target": "dali-cpu"},
    ]
    text = Page(render(replace(session(switch=False), events=events))).text
    assert "train workers 4, prefetch 2 - - -" in text
    assert "train workers 2, prefetch 2, threads 3: not enough memory - - -" in text
    assert "train switch cancelled before it took effect" in text


# -- process and file -------------------------------------------------------------------------------------------------


def test_a_process_of_its_own_renders_the_same_page() -> None:
    snapshot = session()
    same = re.compile(r'"p\d+"|[0-9a-f-]{36}')
    assert same.sub("", render_in_process(snapshot)) == same.sub("", render(snapshot))


def test_rendering_that_takes_too_long_is_an_error() -> None:
    with pytest.raises(MonitorError, match="did not finish within"):
        render_in_process(session(), timeout=0.01)


def test_what_is_no_snapshot_is_refused_in_one_line() -> None:
    command = [sys.executable, "-m", "kernel_monitor.report"]
    done = subprocess.run(command, input=b"nonsense", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"this is not a readable snapshot")
    assert done.stderr.count(b"\n") == 1


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    target = tmp_path / "run.html"
    target.write_text("old")
    assert write(target, "größer\n→") == target
    assert target.read_bytes() == "größer\n→".encode()
    assert [one.name for one in tmp_path.iterdir()] == ["run.html"]
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "run.html"
    target.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MonitorError, match=r"Cannot write .*run\.html: No space left on device\."):
        write(target, "new")
    assert target.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["run.html"]


def test_where_nothing_can_be_written_the_error_says_why(tmp_path: Path) -> None:
    with pytest.raises(MonitorError, match="it is a folder"):
        write(tmp_path, "x")
    with pytest.raises(MonitorError, match=r"the folder .*missing does not exist"):
        write(tmp_path / "missing" / "run.html", "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(MonitorError, match=r"Cannot write .*run\.html: Not a directory\."):
        write(tmp_path / "file" / "run.html", "x")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_importing_it_imports_no_bokeh() -> None:
    code = "import sys, kernel_monitor.report, kernel_monitor.report.client; print('bokeh' in sys.modules)"
    done: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
