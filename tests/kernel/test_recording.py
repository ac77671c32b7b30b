"""The flight recorder seen from the kernel: states, goodbyes, and what the next kernel says after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_monitor.record.sessions import sessions

from ..waiting import until
from .kernels import Page, SharedKernel, kernel, start_monitor
from .test_nothing_left import gone, samplers_of

NEWEST_ONLY = True  # the sampler records; how a kernel ends is what ipykernels differ in
RECORDING = "__import__('kernel_monitor').monitor.recording"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded in temporary space for want of a better one stays in this test's."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))


@pytest.fixture
def recorded(shared: SharedKernel, folder: Path, tmp_path: Path) -> Iterator[Page]:
    """A kernel that records to `folder`."""
    with shared.fresh(KERNEL_MONITOR_SESSIONS=str(folder), TMPDIR=str(tmp_path / "tmp")) as page:
        yield start_monitor(page)


def said(page: Page, code: str) -> str:
    """What a cell prints."""
    out: list[str] = []
    page.client.execute_interactive(code, timeout=60, output_hook=lambda m: out.append(m["content"].get("text", "")))
    return "".join(out)


def end(page: Page, how: str) -> None:
    """End a kernel and wait for its sampler."""
    found = samplers_of(page.pid)
    assert len(found) == 1
    if how == "kill":
        os.kill(page.pid, signal.SIGKILL)
    elif how == "shutdown":
        page.manager.shutdown_kernel(now=False)
    else:
        page.start(how)
    assert gone(found, 10)


@pytest.mark.every_ipykernel
def test_a_killed_kernel_is_told_of_once_by_the_next(shared: SharedKernel, folder: Path) -> None:
    with kernel(shared.name, KERNEL_MONITOR_SESSIONS=str(folder)) as page:
        start_monitor(page)
        page.rows(15)
        path = page.value(RECORDING)["path"]
        end(page, "kill")
    with shared.fresh(KERNEL_MONITOR_SESSIONS=str(folder)) as page:
        page.run("%load_ext kernel_monitor")
        page.iopub(0.3)
        text = said(page, "%monitor start")
        assert text.startswith("The last session (started ")
        assert f"ended without goodbye: its recording is {path}. See it with %monitor open {path}." in text
        assert "ended without goodbye" not in said(page, "%monitor start\n%monitor start")
        opened = page.ask("open", path=path)
        assert (opened["live"], opened["goodbye"]) == (False, False)
        assert opened["seconds"] > 1
        page.run("%monitor stop")
    with shared.fresh(KERNEL_MONITOR_SESSIONS=str(folder)) as page:
        assert said(page, "%load_ext kernel_monitor\n%monitor start") == ""


@pytest.mark.every_ipykernel
@pytest.mark.parametrize("how", ["shutdown", "exit()"])
def test_an_orderly_end_of_the_kernel_is_a_goodbye(shared: SharedKernel, folder: Path, how: str) -> None:
    with kernel(shared.name, KERNEL_MONITOR_SESSIONS=str(folder)) as page:
        start_monitor(page)
        page.rows(5)
        end(page, how)
    _has_its_goodbye(shared, folder)


@pytest.mark.parametrize("how", ["%unload_ext kernel_monitor", "%monitor stop"])
def test_an_orderly_end_in_the_kernel_is_a_goodbye(
    recorded: Page, shared: SharedKernel, folder: Path, how: str
) -> None:
    recorded.rows(5)
    end(recorded, how)
    _has_its_goodbye(shared, folder)


def _has_its_goodbye(shared: SharedKernel, folder: Path) -> None:
    (found,) = sessions(folder)
    assert (found.live, found.goodbye, found.problem) == (False, True, None)
    with shared.fresh(KERNEL_MONITOR_SESSIONS=str(folder)) as page:
        assert said(page, "%load_ext kernel_monitor\n%monitor start") == ""


def test_the_recording_is_left_and_gone_on_with_in_the_same_file(recorded: Page, folder: Path) -> None:
    state = recorded.value(RECORDING)
    assert state["state"] == "recording"
    assert Path(state["path"]).parent == folder
    assert "not recording" in said(recorded, "%monitor record off")
    assert recorded.value(RECORDING)["state"] == "off"
    time.sleep(1)
    assert state["path"] in said(recorded, "%monitor record on")
    until(lambda: recorded.value(RECORDING) == state, say=lambda: recorded.value(RECORDING))
    assert [found.path for found in sessions(folder)] == [Path(state["path"])]
    settings = recorded.ask("configure", record=False)["settings"]
    assert settings["record"] is False
    assert recorded.ask("hello")["recording"]["state"] == "off"


def test_a_restart_of_the_monitor_goes_on_in_the_same_file(recorded: Page, folder: Path) -> None:
    rows = recorded.rows(5)
    recorded.run("%monitor stop")
    (first,) = sessions(folder)
    assert first.goodbye
    time.sleep(1)
    recorded.run("%monitor start")
    recorded.rows(rows + 10)
    until(lambda: sessions(folder)[0].seconds > first.seconds + 1)
    (second,) = sessions(folder)
    assert second.live


def test_a_folder_that_cannot_be_written_is_a_state_and_no_error(recorded: Page, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    recorded.run(f"__import__('kernel_monitor').monitor.configure(record={str(in_the_way)!r})")
    state = recorded.value(RECORDING)
    assert state["state"] == "moved"
    assert str(in_the_way) in state["message"]
    until(lambda: Path(state["path"]).exists())
    assert str(in_the_way) in recorded.value("__import__('kernel_monitor').monitor.status()")
    recorded.ask("subscribe", client="one")
    frames = recorded.frames(1.5)
    assert len(frames) >= 10
    told = [frame["content"]["recording"] for frame in frames if "recording" in frame["content"]]
    assert told == [state], "once, when it has changed"


def test_a_recording_that_is_taken_away_stops_with_its_cause(recorded: Page, folder: Path) -> None:
    recorded.ask("subscribe", client="one")
    recorded.frames(1.0)
    shutil.rmtree(folder)
    until(lambda: recorded.value(RECORDING)["state"] == "stopped")
    state = recorded.value(RECORDING)
    assert "%monitor record on" in state["message"]
    told = [frame["content"].get("recording") for frame in recorded.frames(1.5)]
    assert told, "frames go on"
    assert recorded.ask("hello")["recording"] == state
    assert "recording to" in said(recorded, "%monitor record on")
    until(lambda: len(sessions(folder)) == 1 and sessions(folder)[0].live)


@pytest.mark.every_ipykernel
def test_a_recorded_session_is_listed_opened_and_exported_while_a_cell_runs(recorded: Page, folder: Path) -> None:
    recorded.rows(15)
    until(lambda: sessions(folder)[0].seconds > 0.5)
    recorded.start("import time; time.sleep(20)")
    # Sessions of other tests in temporary space have ended.
    (entry,) = [one for one in recorded.ask("sessions")["sessions"] if one["live"]]
    assert (entry["live"], Path(entry["path"]).parent) == (True, folder)
    opened = recorded.ask("open", path=entry["path"])
    assert (opened["live"], opened["goodbye"], opened["ended"]) == (True, False, None)
    shown = recorded.ask("subscribe", client="one", recorded=opened["recorded"])
    assert (shown["running"], shown["recorded"]["path"]) == (False, entry["path"])
    recorded.iopub(0.3)
    assert recorded.frames(1.0) == [], "a still picture has no frames"
    history = recorded.request("history", {"since": 0, "recorded": opened["recorded"]})
    width = len(history["content"]["schema"]["series"])
    assert history["content"]["rows"] >= 5
    assert len(history["buffers"][2]) == 4 * width * history["content"]["rows"]
    document = recorded.request("document", {"recorded": opened["recorded"]}, timeout=60)
    assert b"PanTool" in bytes(document["buffers"][0])
    html = bytes(recorded.request("export", {"recorded": opened["recorded"]}, timeout=60)["buffers"][0]).decode()
    assert html.lstrip().lower().startswith("<!doctype html>")


def test_the_magics_show_recorded_sessions(recorded: Page, folder: Path, tmp_path: Path) -> None:
    until(lambda: sessions(folder)[0].seconds > 0.5)
    path = recorded.value(RECORDING)["path"]
    listed = said(recorded, "%monitor sessions")
    assert path in listed
    assert "live" in listed
    shown: list[dict[str, Any]] = []
    recorded.client.execute_interactive(
        f"%monitor open {path}", timeout=60, output_hook=lambda m: shown.append(m["content"])
    )
    (data,) = [content["data"] for content in shown if "text/plain" in content.get("data", {})]
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/plain"].startswith("Recorded session of ")
    assert path in data["text/plain"]
    target = tmp_path / "recorded.html"
    recorded.run(f"import kernel_monitor; kernel_monitor.open_session({path!r}).export({str(target)!r})")
    assert target.read_text().lstrip().lower().startswith("<!doctype html>")
    assert recorded.value("kernel_monitor.open_session().dashboard().recorded") == recorded.value(
        "kernel_monitor.monitor.session"
    )
    failed = recorded.client.execute_interactive("%monitor open nowhere", timeout=60, output_hook=lambda _m: None)
    assert failed["content"]["status"] == "error"
    assert "nowhere" in failed["content"]["evalue"]


def test_a_relative_folder_is_the_same_after_a_change_of_the_working_directory(
    shared: SharedKernel, tmp_path: Path
) -> None:
    """By the kernel itself, by what it starts, and by a sampler that begins after it."""
    (tmp_path / "elsewhere").mkdir()
    with kernel(shared.name, KERNEL_MONITOR_SESSIONS="sessions") as page:
        page.run(f"import os\nos.chdir({str(tmp_path)!r})\n%load_ext kernel_monitor\n%monitor start")
        page.rows(5)
        first = page.value(RECORDING)["path"]
        assert first.startswith(str(tmp_path / "sessions"))
        page.run("os.chdir('elsewhere')")
        assert first in said(page, "%monitor sessions")
        assert first in said(page, 'import sys\n!"{sys.executable}" -m kernel_monitor sessions')
        session = page.value("__import__('kernel_monitor').monitor.session")
        assert page.value(f"__import__('kernel_monitor').open_session({session[:8]!r}).id") == session
        copied = tmp_path / "copy.kmsession"
        page.run(f"__import__('kernel_monitor').open_session({session[:8]!r}).copy({str(copied)!r})")
        assert copied.is_file()
        page.run("%monitor record off\n%monitor record on")
        until(lambda: page.value(RECORDING)["state"] == "recording")
        assert page.value(RECORDING)["path"] == first
        page.run("%monitor stop\nos.chdir('/')\n%monitor start")
        page.rows(5)
        until(lambda: page.value(RECORDING)["state"] == "recording")
        assert page.value(RECORDING)["path"] == first
        assert page.ask("open", path=session[:8])["path"] == first
        page.run("%monitor stop")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert [one.problem for one in sessions(tmp_path / "sessions")] == [None]


def test_a_damaged_recording_disturbs_no_start_and_no_list(recorded: Page, folder: Path) -> None:
    (folder / "text.kmsession").write_text("no database")
    (folder / "folder.kmsession").mkdir()
    os.mkfifo(folder / "pipe.kmsession")
    path = recorded.value(RECORDING)["path"]
    recorded.run("%monitor stop")
    listed = said(recorded, "%monitor sessions")
    assert [line.count("damaged: ") for line in listed.strip().splitlines()].count(1) == 3
    assert path in listed
    assert recorded.ask("open")["path"] == path
    assert len(recorded.ask("sessions")["sessions"]) == 4
    assert said(recorded, "%monitor start") == ""
