"""Ranks on the page: real ones appear in the cell, the slow one is named, and their rows stay when they end."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.loaders.conftest import make_folder

from .lab import CELL, SHOW, Lab

ROOT = Path(__file__).parents[2]
LAUNCHER = """\
import os, socket, subprocess, sys
with socket.socket() as found:
    found.bind(("127.0.0.1", 0))
    port = str(found.getsockname()[1])
command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_addr", "127.0.0.1"]
"""
TORCHRUN = """\
settings = {{**os.environ, "STEPS": "5000", "SLOW_RANK": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": "{root}"}}
job = subprocess.Popen([*command, "--master_port", port, "-m", "tests.ranks.training"], env=settings, cwd="{root}")"""
END = "job.terminate(); job.wait()"
SWITCHING = """\
settings = {{**os.environ, "EPOCHS": "200", "STEP": "0.05", "OMP_NUM_THREADS": "1", "PYTHONPATH": "{root}"}}
script = ["-m", "tests.ranks.switching", "{photos}", "{out}"]
status = subprocess.run([*command, "--master_port", port, *script], env=settings, cwd="{root}").returncode"""
CLOSE = "job.stdin.close(); job.wait()"


def test_ranks_appear_in_the_cell_with_the_slow_one_named_and_stay_when_they_end(lab: Lab) -> None:
    dashboard = lab.show(SHOW, LAUNCHER + TORCHRUN.format(root=ROOT), END)
    expect(dashboard.get_by_text("Ranks:", exact=False)).to_have_count(0)
    lab.run_cell(1)
    slow = dashboard.get_by_role("status", name="Slow ranks")
    expect(slow).to_have_text(
        re.compile(r"Rank 1 is the slowest: it waits for its data, [\d.]+ ms longer than the other")
    )
    expect(dashboard.get_by_text("Ranks: wait for data, % of the step")).to_be_visible()
    # The lowest row is the last rank's.
    rows = "monitor.newestTileColumn('ranks-wait_percent') ?? []"
    lab.until(CELL, f"(([slow, fast]) => slow > 30 && slow <= 100 && fast < 30)({rows})")
    lab.run_cell(2)
    expect(dashboard.get_by_text("ranks 0, 1: its process has ended", exact=False)).to_be_visible(timeout=90_000)
    expect(slow).to_be_hidden()
    assert lab.errors == []


def test_one_click_switches_all_ranks_while_their_cell_runs(lab: Lab, tmp_path: Path) -> None:
    photos, out = make_folder(tmp_path / "photos", 99), tmp_path / "out"
    out.mkdir()
    (out / "go").touch()
    job = LAUNCHER + SWITCHING.format(root=ROOT, photos=photos, out=out)
    dashboard = lab.show(SHOW, job, "print(status)")
    lab.run_cell(1)
    engine = dashboard.get_by_role("radiogroup", name="Loader train · job 1").get_by_role("radio", name="dali-cpu")
    expect(dashboard.get_by_text("torchvision on 2 ranks")).to_be_visible(timeout=90_000)
    engine.click()
    expect(engine).to_have_attribute("aria-checked", "true")
    expect(dashboard.get_by_text("dali-cpu on 2 ranks").first).to_be_visible(timeout=60_000)
    # 99 samples on two ranks are 50 each, one of them twice.
    expect(dashboard.get_by_text("100 samples, each once · 1 planned twice as padding", exact=False)).to_be_visible()
    # What is measured of a loader of this process is not offered for the ranks'.
    expect(dashboard.get_by_role("button", name="Diagnose")).to_be_hidden()
    (out / "enough").touch()
    lab.run_cell(2)
    expect(lab.page.locator(".jp-OutputArea-output").get_by_text("0", exact=True)).to_be_visible(timeout=60_000)
    assert lab.errors == []


REPLAY = """\
import subprocess, sys
from kernel_monitor import monitor
folder = monitor.live_session.ranks.server.folder
shape = ["--hosts", "2", "--ranks", "2", "--cores", "40", "--gpus", "2"]
job = subprocess.Popen([sys.executable, "-m", "benchmarks.rank_replay", folder, *shape], cwd="{root}",
                       stdin=subprocess.PIPE)"""
ROWS = "monitor.newestTileColumn('nodes')?.filter((cell) => cell <= 100).length"


def test_hosts_are_folded_into_a_row_each_and_unfolded_by_keyboard(lab: Lab) -> None:
    dashboard = lab.show(SHOW, REPLAY.format(root=ROOT), CLOSE)
    lab.run_cell(1)
    machines = dashboard.get_by_role("group", name="Machines")
    first = machines.get_by_role("button", name="Cores of gpu-node-01")
    expect(first).to_have_attribute("aria-expanded", "false")
    # The mean of the cores and that of the GPUs of each.
    lab.until(CELL, f"{ROWS} === 4")
    first.focus()
    lab.page.keyboard.press("Enter")
    expect(first).to_have_attribute("aria-expanded", "true")
    lab.until(CELL, f"{ROWS} === 2 + 40 + 2")
    expect(machines.get_by_role("button", name="Cores of gpu-node-02")).to_have_attribute("aria-expanded", "false")
    expect(first).to_be_focused()
    for text in ("Ranks: phases of the slowest and the median rank, ms", "clocks of the hosts agree to ± 0.5 ms"):
        expect(dashboard.get_by_text(text, exact=False)).to_be_visible()
    dashboard.get_by_text("Median rank", exact=True).scroll_into_view_if_needed()  # what is out of sight is not drawn
    # The parts of a step stand on each other, up to the step of 20 ms.
    parts = "monitor.sourceData('ranks-1-slowest-stack')"
    lab.until(CELL, f"{parts}.beside?.at(-1) >= 0 && Math.abs({parts}.y5?.at(-1) - 20) < 0.5")
    lab.run_cell(2)
    expect(dashboard.get_by_text("gpu-node-02 is gone: its ranks have ended", exact=False)).to_be_visible()
    assert lab.errors == []
