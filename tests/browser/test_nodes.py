"""Other machines on the page: their rows appear in cell and sidebar, and stay with the reason when they go."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from .lab import CELL, SIDEBAR, Lab

CLUSTER = """\
%load_ext kernel_monitor
import json, subprocess, sys, threading
from kernel_monitor.node_sources import NodeTable

SAMPLER = '''
import json, time
from kernel_monitor.sample.node_sampler import NodeSampler
sampler = NodeSampler()
print(json.dumps(sampler.cores), flush=True)
while True:  # until nobody reads
    time.sleep(0.2)
    print(json.dumps(sampler.read()), flush=True)
'''
table, processes = NodeTable(stale_s=2.0), {}

def join(name):
    "This machine's sampler, as if it were another machine."
    process = processes[name] = subprocess.Popen([sys.executable, "-c", SAMPLER], stdout=subprocess.PIPE, text=True)
    node = table.add(name, name, json.loads(process.stdout.readline()))
    def follow():
        for line in process.stdout:
            table.update(node, json.loads(line))
            table.delivered(node)
        table.gone(node, f"{name} answers no more")
    threading.Thread(target=follow, daemon=True).start()

%monitor"""
JOIN = 'join("cpu-machine-7.example.internal"); join("rack-b")'
TO_THE_MIDDLE = "(el) => el.scrollIntoView({ block: 'center' })"
LEAVE = 'processes["rack-b"].kill()'


def _wait_for_rows(lab: Lab, where: str) -> None:
    """Until the heatmap of other machines is drawn from values."""
    newest = "monitor.newestTileColumn('nodes')"
    lab.until(where, f"{newest}?.length === 2 * navigator.hardwareConcurrency && {newest}.every((cell) => cell <= 100)")


def test_rows_of_other_machines_appear_in_cell_and_sidebar_and_stay_when_one_goes(lab: Lab) -> None:
    lab.open(lab.server.notebook("cluster.ipynb", CLUSTER, JOIN, LEAVE))
    lab.open_sidebar()
    lab.run_cell(0)
    for where in (CELL, SIDEBAR):
        lab.wait_running(where)
        expect(lab.dashboard(where).get_by_text("CPU machines", exact=False)).to_have_count(0)
    lab.run_cell(1)
    for where in (CELL, SIDEBAR):
        dashboard = lab.dashboard(where)
        rows = dashboard.get_by_text("CPU machines: busy, % per core")
        expect(rows).to_be_visible()
        rows.evaluate(TO_THE_MIDDLE)  # what is out of sight is not drawn
        _wait_for_rows(lab, where)
        expect(dashboard.get_by_text("rack-b").first).to_be_visible()  # in the key of the lines
        dashboard.get_by_text("CPU machines: batches/s").evaluate(TO_THE_MIDDLE)
        lab.until(where, "Array.from(monitor.sourceData('nodes-batches-means')?.y1 ?? []).some((value) => value > 1)")
    lab.run_cell(2)
    for where in (CELL, SIDEBAR):
        expect(lab.dashboard(where).get_by_text(re.compile("rack-b is gone: rack-b answers no more"))).to_be_visible()
    assert lab.errors == []
