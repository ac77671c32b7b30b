"""The static picture of a session for places without a live page: text, and a small HTML table without scripts."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..live import Monitor

LEFT = "text-align: left"


def summary_rows(monitor: Monitor) -> list[tuple[str, str]]:
    """(label, text) pairs: duration, CPU, memory, GPUs or the reason there are none, loaders, the last switch."""
    rows = monitor.store.rows()
    schema = rows.schema
    if len(rows.seq) == 0:
        return [("Monitor", "started; no sample yet")]
    names = [series.name for series in schema.series]
    out = [("Time", f"{rows.time[-1] - rows.time[0]:.0f} s, {len(rows.seq):,} samples")]
    busy = [k for k, name in enumerate(names) if name.startswith("cpu/") and name.endswith("/busy")]
    if busy:
        mean = np.nanmean(rows.values[1:, busy], axis=1) if len(rows.seq) > 1 else rows.values[:, busy[0]]
        out.append((f"CPU, {len(busy)} cores", _percentiles(mean)))
    for gpu in schema.gpus:
        name = f"gpu/{gpu.index}/utilisation"
        if name in names:
            out.append((f"GPU {gpu.index}, {gpu.name}", _percentiles(rows.values[:, names.index(name)])))
    if schema.gpu_reason:
        out.append(("GPU", schema.gpu_reason))
    for state in monitor.loader_states():
        planned = "?" if state["planned"] is None else f"{state['planned']:,}"
        counts = f"{state['samples']:,} of {planned} samples, {state['lost']} lost, {state['doubled']} doubled"
        counts += f", {state['replaced']:,} replaced by synthetic" if state["replaced"] else ""
        counts += f", {state['skipped']:,} skipped" if state["skipped"] else ""
        out.append((f"Loader {state['name']}", f"{state['status']}; epoch {state['epoch'] + 1}: {counts}"))
    if monitor.strip:
        out.append(("Last switch", str(monitor.strip["text"])))
    return out


def summary_text(monitor: Monitor) -> str:
    rows = summary_rows(monitor)
    width = max(len(label) for label, _ in rows)
    return "\n".join(["kernel_monitor", *(f"  {label:<{width}}  {text}" for label, text in rows)])


def summary_html(monitor: Monitor) -> str:
    body = "".join(
        f'<tr><th scope="row" style="{LEFT}">{escape(label)}</th><td style="{LEFT}">{escape(text)}</td></tr>'
        for label, text in summary_rows(monitor)
    )
    return f"<table><caption>kernel_monitor</caption><tbody>{body}</tbody></table>"


def _percentiles(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return "no values"
    p50, p95 = np.percentile(finite, [50, 95])
    return f"p50 {p50:.0f} %, p95 {p95:.0f} %"
