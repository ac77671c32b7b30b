"""Writes `docs/metrics.md` from the table in `benchmarks/metrics.py`.

python -m tests.unit.metrics_table
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from benchmarks.metrics import FRAME, METRICS
from kernel_monitor import node_sources, rank
from kernel_monitor.sample.host.processes import ROLES

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

HEAD = f"""# Metrics

Written by `python -m tests.unit.metrics_table` from `benchmarks/metrics.py`; a test compares.

Every frame holds one value per series, NaN where there is none; zero means zero. In a series' name `<n>` is a logical
core, `<i>` a GPU, `<j>` one of its MIG instances, `<role>` one of {", ".join(f"`{role}`" for role in ROLES)}, `<group>`
one of the groups below. A GPU's metric that is missing has NVML's reason in the hello (`gpus[i].reasons`), one of the
host in `host.reasons`; the dashboard and the report show both.

What is read together is a *group*. The period is the time between two readings: no group is read more often than there
are frames, and where readings are rarer than frames, the newest is held. How old it is and how much time it covers
stands in the frame itself: `sample/<group>/age` and `sample/<group>/window`. Rates and shares are over the window;
amounts (memory, temperature, clocks, counts, load averages) are of the moment at its end. Load in `/proc/stat` is
counted in ticks of 10 ms, so a window of 100 ms has steps of 10 %.

On macOS and Windows the host's metrics come from psutil, and those that these systems do not count are absent.
"""

NODES = """## Other machines

Those that work for a loader, and the hosts of ranks other than the kernel's. Each reads its own load
(`kernel_monitor/sample/node_sampler.py`) and sends it to the kernel as often as the loader's engine asks, a host of
ranks once a second; the newest reading is held for some seconds, then the values are missing.
`<id>` is `node-1`, `node-2`, … in the order in which the machines came. What follows is measured over the time between
two readings.
"""
OF_NODES = {
    "cpu/<n>/busy": ("`/proc/stat`", "as `cpu/<n>/busy` above, of that machine's core"),
    "network/received": ("`/proc/net/dev`", "by all its interfaces but the loopback"),
    "network/sent": ("`/proc/net/dev`", "by all its interfaces but the loopback"),
    "memory": ("`/proc/meminfo`", "in use, as `memory/used` above"),
    "batches": ("the loader", "batches that it delivered in the frame's window"),
    "busy": ("the monitor", "mean of its cores"),
    "gpu": ("the monitor", "mean of its GPUs' utilisation"),
    "gpu/<k>/utilisation": ("NVML", "as `gpu/<i>/utilisation` above, of that host's GPU"),
    "gpu/<k>/clock": ("NVML", "as `gpu/<i>/clock_sm` above"),
    "gpu/<k>/memory_used": ("NVML memory", "memory in use"),
}
GPUS = """The GPUs are those of a host of ranks where NVML is (`kernel_monitor/sample/node_sampler.py`); `<k>` is NVML's
index there.
"""
RANKS = """## Ranks

Of each rank (`<id>` is its job's number and its own, `1-0`) and, for jobs of several ranks, of two of them side by
side. A value stands in the row in which its frame arrived, at most 0.6 s after the step.
"""
OF_RANKS = {
    "cpu": ("the rank", "of a core that its process used since the frame before"),
    "step": ("the rank", "mean of the steps of a frame"),
    "wait": ("the rank", "mean wait for data of these steps"),
    "wait_percent": ("the rank", "share of the wait in the step"),
    "copy": ("the rank", "mean of the phase"),
    "forward": ("the rank", "mean of the phase"),
    "backward": ("the rank", "mean of the phase"),
    "optimizer": ("the rank", "mean of the phase"),
    "other": ("the rank", "rest of the step, where phases were measured"),
    "images": ("the rank", "samples since the frame before, by its loader's counter"),
    "steps": ("the monitor", "steps that have arrived, in all"),
    "gpu": ("NVML", "utilisation of the GPU on which torch has allocated the most in that process"),
    "gpu_clock": ("NVML", "clock of that GPU"),
}
OF_JOBS = {"rank": "number of the slowest rank, and of the median one of the others", "other": "the rest of the step"}
RANKS_END = """The slowest is the one that the page names; where it names none, the one with the longest time of its own
([how](howto/ranks.md#the-slow-one)).
"""


def text() -> str:
    """The document."""
    lines = [HEAD]
    for group, metrics in groupby(METRICS, key=lambda metric: metric.group):
        rows = list(metrics)
        lines.append(
            f"## {'The frame itself' if group == FRAME else f'`{group}`'}: {_period(group, rows[0].period_s)}\n"
        )
        lines.append("| series | unit | source | meaning |\n|---|---|---|---|")
        lines += [f"| `{row.name}` | {row.unit} | {_code(row.source)} | {row.meaning} |" for row in rows]
        lines.append("")
    lines += [NODES, "| series | unit | source | meaning |\n|---|---|---|---|"]
    gpus = [(f"gpu/<k>/{part}", unit) for part, unit in node_sources.GPU_PARTS]
    for part, unit in (("cpu/<n>/busy", "%"), *node_sources.PARTS, ("gpu", "%"), *gpus):
        source, meaning = OF_NODES[part]
        lines.append(f"| `node/<id>/{part}` | {unit} | {source} | {meaning} |")
    lines += ["", GPUS, RANKS, "| series | unit | source | meaning |\n|---|---|---|---|"]
    for part, unit in (("cpu", "%"), *rank.STEP_PARTS, *rank.GPU_PARTS):
        source, meaning = OF_RANKS[part]
        lines.append(f"| `rank/<id>/{part}` | {unit} | {source} | {meaning} |")
    for part, unit in rank.JOB_PARTS:
        names = ", ".join(f"`job/<n>/{which}/{part}`" for which in rank.JOB_RANKS)
        lines.append(f"| {names} | {unit} | the monitor | {OF_JOBS.get(part, 'as of a rank')} |")
    lines += ["", RANKS_END.rstrip()]
    return "\n".join([*lines, ""])


def _period(group: str, seconds: float) -> str:
    if seconds == 0:
        return "with every frame"
    return f"with every frame, at most every {seconds:g} s" if group == "gpu" else f"every {seconds:g} s"


def _code(source: str) -> str:
    """Files as code."""
    return f"`{source}`" if source.startswith("/") else source


if __name__ == "__main__":
    DOCUMENT.write_text(text(), "utf-8")
