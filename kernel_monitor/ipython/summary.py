"""The static summary of a session, for places without a live page, and tables as text and as HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..runtime import Monitor

LEFT = "text-align: left"
Rows = list[tuple[str, str]]


def summary_rows(monitor: Monitor) -> Rows:
    """(label, text) pairs: duration, CPU, GPUs or why there are none, loaders, the last switch."""
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


def text_table(title: str, rows: Rows) -> str:
    """Labels and texts in two columns below a title."""
    width = max(len(label) for label, _ in rows)
    return "\n".join([title, *(f"  {label:<{width}}  {text}" for label, text in rows)])


def html_table(title: str, rows: Rows) -> str:
    """The same as HTML without scripts."""
    body = "".join(
        f'<tr><th scope="row" style="{LEFT}">{escape(label)}</th><td style="{LEFT}">{escape(text)}</td></tr>'
        for label, text in rows
    )
    return f"<table><caption>{title}</caption><tbody>{body}</tbody></table>"


def _percentiles(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return "no values"
    p50, p95 = np.percentile(finite, [50, 95])
    return f"p50 {p50:.0f} %, p95 {p95:.0f} %"
