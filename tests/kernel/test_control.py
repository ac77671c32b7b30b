"""The control channel and the stream of a real kernel, idle and under load that holds the GIL."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_monitor.protocol.message_types import PROTOCOL

from .kernels import BUSY_CELL, Page


def test_the_kernels_are_the_two_supported_ones(measuring: Page) -> None:
    version = measuring.value("__import__('ipykernel').__version__")
    wanted = "6.31." if measuring.manager.kernel_name == "python3-ipykernel6" else "7.4."
    assert version.startswith(wanted)
    assert measuring.ask("hello")["ipykernel"] == version


def asked(command: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"protocol": PROTOCOL, "command": command, "args": args}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (asked("fly", {}), "Unknown command 'fly'"),
        ({"protocol": 99, "command": "subscribe", "args": {"client": "x"}}, "protocol 2"),
        ({"protocol": 2}, "needs a command"),
        ({}, "protocol"),
        (asked("subscribe", {}), "client is missing"),
        (asked("subscribe", {"client": 3}), "client is no text"),
        (asked("history", {"since": "x"}), "since is no whole number"),
        (asked("start", {"interval": "fast"}), "interval"),
        (asked("start", {"interval": 0.001}), "between 0.05 and 60"),
        (asked("switch", {"loader": "x", "backend": "dali-cpu"}), "no loader to switch"),
        (asked("switch", {"loader": "x", "backend": "y", "confirmed": 1}), "neither true nor false"),
        (asked("set", {"workers": 2}), "loader is missing"),
        (asked("set", {"loader": "x", "workers": "2"}), "workers is no whole number from 0 to 256"),
        (asked("set", {"loader": "x", "speed": 2}), "there is no 'speed'"),
        (asked("set", {"loader": "x"}), "Say what to set"),
        (asked("set", {"loader": "x", "workers": 2}), "no loader to switch"),
        (asked("diagnose", {}), "no loader to switch"),
        (asked("diagnose", {"confirmed": 1}), "confirmed is neither true nor false"),
        (asked("diagnose", {"seconds": "8"}), "seconds is no number from 1 to 60"),
        (asked("diagnose", {"speed": 2}), "there is no 'speed'"),
        (asked("profile", {"speed": 2}), "there is no 'speed'"),
        (asked("mark", {}), "label is missing"),
        (asked("verdict", {"loader": "x"}), "there is no 'loader'"),
    ],
)
def test_bad_requests_get_an_error_reply(measuring: Page, content: dict[str, object], says: str) -> None:
    reply = measuring.raw_request(content)["content"]
    assert reply["status"] == "error"
    assert reply["error"]
    assert says in reply["message"]
    assert measuring.ask("hello")["running"] is True


def test_a_page_of_another_version_learns_whom_it_speaks_to(measuring: Page) -> None:
    hello = measuring.request("hello", protocol=99)["content"]
    assert hello["status"] == "ok"
    assert hello["protocol"] == PROTOCOL
    assert hello["environment"] == measuring.value("__import__('os').path.basename(__import__('sys').prefix)")


def test_a_page_is_told_the_findings_and_can_mark_a_moment(page: Page) -> None:
    told = page.ask("subscribe", client="one")
    assert [told[key] for key in ("verdict", "diagnosing", "profiling")] == [None] * 3
    assert page.ask("verdict")["verdict"] is None
    assert page.ask("diagnose", cancel=True)["diagnosing"] is None
    page.ask("mark", label="augment x12")
    marks = [event for event in page.ask("subscribe", client="one")["events"] if event["kind"] == "mark"]
    assert [mark["label"] for mark in marks] == ["augment x12"]


def test_frames_flow_only_while_a_page_shows_them(page: Page) -> None:
    page.iopub(0.5)
    assert page.frames(1.0) == []
    page.ask("subscribe", client="one")
    frames = page.frames(2.0)
    assert len(frames) >= 15
    page.ask("unsubscribe", client="one")
    page.frames(0.3)
    assert page.frames(1.0) == []


def test_a_page_that_takes_several_rows_in_a_frame_gets_every_row_in_few_messages(page: Page) -> None:
    page.ask("subscribe", client="one", bundled=True)
    page.frames(1.0)
    frames = page.frames(4.0)
    width = len(page.ask("subscribe", client="one", bundled=True)["schema"]["series"])
    rows = []
    for frame in frames:
        content = frame["content"]
        rows += [*content.get("before", []), [content["seq"], content["time"]]]
        assert len(frame["buffers"][0]) == 4 * width * (1 + len(content.get("before", [])))
    seqs = [seq for seq, _ in rows]
    assert seqs == list(range(int(seqs[0]), int(seqs[0]) + len(seqs)))
    assert len(frames) < len(rows) / 2
    assert sum("loaders" in frame["content"] for frame in frames) < len(rows) / 2
    history = page.request("history", {"since": seqs[0] - 1})["buffers"]
    sent = b"".join(bytes(frame["buffers"][0]) for frame in frames)
    assert bytes(history[2])[: len(sent)] == sent
    # Another page that takes one row at a time has them both get that.
    page.ask("subscribe", client="other")
    page.frames(0.5)
    assert all("before" not in frame["content"] for frame in page.frames(1.0))


@pytest.mark.alone
def test_a_busy_cell_stops_neither_frames_nor_replies(page: Page) -> None:
    page.ask("subscribe", client="one")
    page.start(BUSY_CELL.format(seconds=8))
    time.sleep(1)
    page.iopub(0.2)
    frames = page.frames(4.0)
    seqs = [frame["content"]["seq"] for frame in frames]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs))), "a sequence number is missing or out of order"
    assert len(frames) >= 36
    ages = [frame["arrived"] - frame["content"]["sampled"] for frame in frames]
    assert np.percentile(ages, 95) <= 1.5  # three times the bar
    times = []
    for _ in range(30):
        begun = time.perf_counter()
        page.ask("hello")
        times.append(time.perf_counter() - begun)
    # The bar is 150 ms in a browser; three times that here.
    assert np.percentile(times, 95) <= 0.45


def test_history_holds_what_the_frames_said(page: Page) -> None:
    page.ask("subscribe", client="one")
    frames = {f["content"]["seq"]: f for f in page.frames(2.0)}
    reply = page.request("history", {"since": min(frames) - 1})
    content = reply["content"]
    n, m = content["rows"], len(content["schema"]["series"])
    seq = np.frombuffer(reply["buffers"][0], "<f8").astype(int)
    values = np.frombuffer(reply["buffers"][2], "<f4").reshape(n, m)
    assert set(frames) <= set(seq)
    for number, frame in frames.items():
        sent = np.frombuffer(frame["buffers"][0], "<f4")
        np.testing.assert_array_equal(values[list(seq).index(number)], sent)
    assert any(len(set(column[np.isfinite(column)])) > 1 for column in values.T), "live values change"


def test_document_and_bokehjs_match(page: Page) -> None:
    document = page.request("document", timeout=60)
    script = page.request("bokehjs")
    assert document["content"]["bokeh"] == script["content"]["version"]
    assert bytes(document["buffers"][0]).startswith(b"{")
    assert script["content"]["version"].encode() in bytes(script["buffers"][0])
    assert page.value("'bokeh' in __import__('sys').modules") is False, "Bokeh must not run in the kernel"


def test_export_works_while_a_cell_runs(page: Page, tmp_path: Path) -> None:
    page.rows(8)
    page.start(BUSY_CELL.format(seconds=15))
    reply = page.request("export", timeout=120)
    assert reply["content"]["status"] == "ok", reply["content"]
    html = bytes(reply["buffers"][0]).decode()
    assert html.lstrip().lower().startswith("<!doctype html>")
    assert "Content-Security-Policy" in html
    page.interrupt()
    target = tmp_path / "run.html"
    page.run(f"%monitor export {target}")
    assert target.read_text().lstrip().lower().startswith("<!doctype html>")


def test_export_that_cannot_be_written_leaves_nothing(page: Page, tmp_path: Path) -> None:
    page.rows(3)
    folder = tmp_path / "folder"
    folder.mkdir()
    page.run(
        "def attempt(path):\n"
        "    from kernel_monitor import errors, monitor\n"
        "    try:\n"
        "        monitor.export(path)\n"
        "    except errors.MonitorError as exc:\n"
        "        return str(exc)\n"
    )
    message = page.value(f"attempt({str(folder)!r})")
    assert str(folder) in message
    assert list(folder.iterdir()) == []
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
