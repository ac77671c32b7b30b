"""The parts of the page that are words and tables."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ..diagnose import QUANTILES, allowed_cores, compare, measure, percentiles, segments, strip
from .machine import cost, recorded
from .markup import Html, el, join, table
from .words import clock, duration, moment, number, size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timezone

    from ..store import Snapshot

FAILURES = {
    "switch-failed": "switch failed",
    "switch-superseded": "switch superseded by a newer one",
    "switch-cancelled": "switch cancelled before it took effect",
    "sampler-restarted": "sampler restarted",
}


def title(snapshot: Snapshot, where: timezone) -> str:
    """`Training session of 20 November 2026, 19:07 (UTC+01:00)`; a recorded one is called that."""
    began = float(snapshot.time[0]) if len(snapshot.time) else 0.0
    what = "Recorded" if recorded(snapshot.facts) else "Training"
    return f"{what} session of {moment(snapshot.schema.origin + began, where)}"


def samples(snapshot: Snapshot) -> str:
    """`36,000 samples, one every 100 ms`; where they are bins of a recording, what was recorded."""
    told = snapshot.facts.get("recorded")
    count, interval = len(snapshot.time), snapshot.schema.interval
    if not isinstance(told, dict) or not told.get("bin_s"):
        return f"{count:,} samples, one every {interval * 1000:g} ms"
    return f"{int(told['rows']):,} samples" if told.get("rows") else f"{count:,} bins"


def header(snapshot: Snapshot, where: timezone) -> Html:
    """Title, when, and facts about the machine and the software."""
    schema, host, facts = snapshot.schema, snapshot.schema.host, snapshot.facts
    count = len(snapshot.time)
    span = float(snapshot.time[-1] - snapshot.time[0]) if count else 0.0
    measured = f"{duration(span)} · {samples(snapshot)}" if count else "no sample"
    cores = f"{len(schema.cpus) or host.get('logical_cpus', '?')} logical cores"
    entries = [
        ("Processor", f"{host['cpu_model']}, {cores}" if host.get("cpu_model") else cores),
        ("Memory", size(float(host["memory_total"])) if host.get("memory_total") else None),
        ("GPU", _gpus(snapshot)),
        ("System", _text(host.get("platform"))),
        ("Loaders", ", ".join(loader.name for loader in schema.loaders) or None),
        ("Software", _software(facts)),
        ("Cost of watching", cost(snapshot)),
    ]
    missed = facts.get("restarts")
    if missed:
        entries.append(("Sampler", f"restarted {missed} times; the gaps are drawn as gaps"))
    told = recorded(facts)
    return join(
        el("p", "kernel_monitor", class_="brand"),
        el("h1", title(snapshot, where)),
        el("p", " · ".join([measured, *told]), class_="measured recorded" if told else "measured"),
        el("dl", *(el("div", el("dt", term), el("dd", text)) for term, text in entries if text)),
    )


def switch(snapshot: Snapshot) -> Html | None:
    """The strip: what the last switch changed, in figures and in one line."""
    found = strip(snapshot, snapshot.events, snapshot.loaders)
    if found is None:
        return None
    cards = [_card(row) for row in found["rows"] if row["label"] not in ("samples", "counted over")]
    return el(
        "section",
        el("h2", "What the switch changed: ", el("b", f"{found['source']} → {found['target']}")),
        el("div", *cards, class_="cards") if cards else None,
        el("p", found["text"], class_="strip"),
        class_="switch",
        aria_label="What the last switch changed",
    )


def statistics(snapshot: Snapshot) -> Html | None:
    """Percentiles before and after the last switch, or of the whole session."""
    if not len(snapshot.time):
        return None
    marks = [f"p{q}" for q in QUANTILES]
    comparison = compare(snapshot, snapshot.events)
    if comparison is not None and comparison.reason is None:
        sides = [comparison.before, comparison.after]
        names = [f"before, {comparison.switch['source']}", f"after, {comparison.switch['target']}"]
        note = "While the loader was delivering, without the change-over: " + "; ".join(
            f"{which}: {side.samples:,.0f} samples in {duration(side.seconds)}"
            for which, side in zip(names, sides, strict=True)
        )
        name = "Before and after the last switch"
    else:
        only = snapshot.schema.loaders[0].id if len(snapshot.schema.loaders) == 1 else None
        side = measure(snapshot, only, -1.0, float(snapshot.time[-1]))
        note = f"While the loader was delivering: {side.samples:,.0f} samples in {duration(side.seconds)}"
        if not side.samples:
            side, note = measure(snapshot, None, -1.0, float(snapshot.time[-1])), "All of the time."
        sides, names, name = [side], ["whole session"], "Percentiles of the session"
    head = ["", "unit", *(f"{mark} {one.partition(',')[0]}" for mark in marks for one in names)]
    if len(sides) == 1:
        head = ["", "unit", *marks]
    rows = []
    for line in percentiles(*sides):
        cells = [number(side[k], line.unit) for k in range(len(QUANTILES)) for side in line.percentiles]
        rows.append([line.label, line.unit, *cells])
    allowed = len(allowed_cores(snapshot.schema))
    if allowed < len(snapshot.schema.cpus):
        note = f"{note.rstrip('.')}. CPU: the {allowed} cores that this process may use."
    return _section(name, note, table(head, rows, numbers=range(2, len(head)))) if rows else None


def stretches(snapshot: Snapshot, where: timezone) -> Html | None:
    """Each stretch between two switches, with the counts behind its rate."""
    found = segments(snapshot, snapshot.events, snapshot.loaders)
    if not found:
        return None
    names = _names(snapshot)
    head = ["loader", "backend", "from", "counted", "samples", "images/s", "CPU p95", "GPU p50", "data wait per step"]
    rows = []
    for one in found:
        side = one.measured
        by_label = {line.label: line.percentiles[0] for line in percentiles(side)}
        cpu, gpu = by_label.get("CPU busy, mean of the cores"), by_label.get("GPU utilisation")
        rows.append(
            [
                names.get(one.loader, one.loader),
                one.backend,
                clock(snapshot.schema.origin + max(side.start, 0.0), where),
                duration(side.seconds),
                f"{side.samples:,.0f}",
                number(side.rate),
                f"{cpu[1]:.0f} %" if cpu else "-",
                f"{gpu[0]:.0f} %" if gpu else "-",
                f"{number(side.mean_wait)} ms",
            ]
        )
    note = "Counted while the loader was delivering; pauses of the loop and change-overs are left out."
    return _section("Stretch by stretch", note, table(head, rows, numbers=range(3, len(head))))


def happened(snapshot: Snapshot, where: timezone) -> Html | None:
    """The switches and changed knobs with their times, and what failed."""
    names = _names(snapshot)
    rows = []
    for event in snapshot.events:
        loader = names.get(str(event.get("loader")), str(event.get("loader", "-")))
        when = clock(snapshot.schema.origin + float(event.get("first", event["time"])), where)
        if event["kind"] == "switch":
            took = f"{1000 * (float(event['first']) - float(event['asked'])):,.0f} ms" if "asked" in event else "-"
            what = f"{event['source']} → {event['target']}"
            rows.append([when, loader, what, str(event["epoch"] + 1), str(event["batch"]), took])
        elif event["kind"] == "knobs":
            rows.append([when, loader, _knobs(event), "-", "-", "-"])
        elif event["kind"] in FAILURES:
            message = f": {event['message']}" if event.get("message") else ""
            rows.append([when, loader, FAILURES[event["kind"]] + message, "-", "-", "-"])
    if not rows:
        return None
    head = ["time", "loader", "what", "epoch", "batch", "request to first batch"]
    return _section("Switches", None, table(head, rows, numbers=range(3, len(head))))


def deliveries(snapshot: Snapshot) -> Html | None:
    """What each loader delivered of each epoch's plan, and who decoded it."""
    rows = []
    for state in snapshot.loaders:
        for epoch in (*state.get("epochs", ()), state):
            planned = epoch["planned"]
            decoded = ", ".join(f"{count:,} by {name}" for name, count in epoch["decoded"].items() if count)
            rows.append(
                [
                    str(state["name"]),
                    str(epoch["epoch"] + 1),  # counted from 1, as on the dashboard
                    f"{epoch['samples']:,}" + (f" of {planned:,}" if planned is not None else ""),
                    f"{epoch['skipped']:,}",
                    f"{epoch['replaced']:,}",
                    f"{epoch['lost']:,}",
                    f"{epoch['doubled']:,}",
                    decoded or "-",
                ]
            )
    if not rows:
        return None
    head = ["loader", "epoch", "samples of the plan", "skipped", "replaced by synthetic", "lost", "doubled", "decoded"]
    return _section("Delivered", None, table(head, rows, numbers=range(1, 7)))


def skipped(snapshot: Snapshot) -> Html | None:
    """The last samples that each loader left out of its newest epoch, and why."""
    rows = [
        [str(state["name"]), f"{skip['index']:,}", str(skip["path"]), str(skip["reason"])]
        for state in snapshot.loaders
        for skip in state["skips"]
    ]
    if not rows:
        return None
    head = ["loader", "sample", "file", "why"]
    note = "Unreadable files, left out of the newest epoch; the last ones of each loader."
    return _section("Skipped samples", note, table(head, rows, numbers=range(1, 2)))


def _section(title: str, note: str | None, body: Html) -> Html:
    return el("section", el("h2", title), el("p", note, class_="note") if note else None, body)


def _card(row: Mapping[str, Any]) -> Html:
    before, after, unit = float(row["before"]), float(row["after"]), str(row["unit"])
    label = str(row["label"])
    if unit == "images/s" and before > 0:
        change = f"{after / before:.2f} times as many"
    elif unit == "%":
        change = f"{after - before:+.0f} points"
    else:
        change = f"{after - before:+.1f} {unit}"
    shown = "" if unit == "images/s" else f" {unit}"
    return el(
        "div",
        el("span", label, class_="label"),
        el(
            "span",
            el("span", _figure(before), class_="before"),
            el("span", " → ", class_="arrow"),
            el("b", _figure(after)),
            el("span", shown, class_="unit"),
            class_="figures",
        ),
        el("span", change.replace("-", "−"), class_="change"),
        class_="card",
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 or value == 0 else f"{value:.1f}"


def _gpus(snapshot: Snapshot) -> str | None:
    schema = snapshot.schema
    if not schema.gpus:
        return f"none: {schema.gpu_reason}" if schema.gpu_reason else None
    kinds = Counter(f"{gpu.name} ({size(gpu.memory_total)})" if gpu.memory_total else gpu.name for gpu in schema.gpus)
    return ", ".join(f"{count} × {kind}" if count > 1 else kind for kind, count in kinds.items())


def _software(facts: Mapping[str, Any]) -> str | None:
    versions: dict[str, Any] = {"python": facts["python"]} if facts.get("python") else {}
    versions |= dict(facts.get("versions", {}))
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or None


def _names(snapshot: Snapshot) -> dict[str, str]:
    names = {loader.id: loader.name for loader in snapshot.schema.loaders}
    return names | {str(state["id"]): str(state["name"]) for state in snapshot.loaders}


def _knobs(event: Mapping[str, Any]) -> str:
    set_to = [f"{name} {event[name]}" for name in ("workers", "prefetch", "threads") if event[name] is not None]
    return ", ".join(set_to) + (f": {event['message']}" if event.get("message") else "")


def _text(value: Any) -> str:
    return "-" if value is None else str(value)
