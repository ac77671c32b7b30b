"""The beginning of the page, and its last facts: which session, on which machine, with which software."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from .machine import cost, recorded
from .markup import Html, counted, el, join, section
from .words import duration, moment, size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timezone

    from ..store import Schema, Snapshot


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
    """Title, when, how long, on what, and whether the recording is whole."""
    count = len(snapshot.time)
    span = float(snapshot.time[-1] - snapshot.time[0]) if count else 0.0
    measured = f"{duration(span)} · {samples(snapshot)}" if count else "no sample"
    told = recorded(snapshot.facts)
    found = snapshot.facts.get("recorded")
    damaged = len(found.get("damaged") or ()) if isinstance(found, dict) else 0
    if damaged:
        told.append(f"{counted(damaged, 'damaged piece')} left out")
    gpu = _gpus(snapshot) if snapshot.schema.gpus else "no GPU"
    short = " · ".join(filter(None, [_cores(snapshot.schema), gpu, _rank(snapshot.facts)]))
    return join(
        el("p", "kernel_monitor", class_="brand"),
        el("h1", title(snapshot, where)),
        el("p", " · ".join([measured, *told]), class_="measured recorded" if told else "measured"),
        el("p", short, class_="short"),
    )


def facts(snapshot: Snapshot) -> Html:
    """The machine and the software, and what watching them cost."""
    schema, host, told = snapshot.schema, snapshot.schema.host, snapshot.facts
    cores = _cores(schema)
    entries = [
        ("Processor", f"{host['cpu_model']}, {cores}" if host.get("cpu_model") else cores),
        ("Memory", size(float(host["memory_total"])) if host.get("memory_total") else None),
        ("GPU", _gpus(snapshot)),
        ("System", _text(host.get("platform"))),
        ("Rank", _rank(told)),
        ("Loaders", ", ".join(loader.name for loader in schema.loaders) or None),
        ("Software", _software(told)),
        ("Cost of watching", cost(snapshot)),
    ]
    missed = told.get("restarts")
    if missed:
        entries.append(("Sampler", f"restarted {missed} times; the gaps are drawn as gaps"))
    lines = [el("div", el("dt", term), el("dd", text)) for term, text in entries if text]
    return section("machine", "Machine and software", None, el("dl", *lines))


def _cores(schema: Schema) -> str:
    return f"{len(schema.cpus) or schema.host.get('logical_cpus', '?')} logical cores"


def _rank(told: Mapping[str, Any]) -> str | None:
    """`rank 0 of 8` where there are several."""
    if told.get("rank") is None or not told.get("world_size"):
        return None
    return f"rank {told['rank']} of {told['world_size']}"


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


def _text(value: Any) -> str:
    return "-" if value is None else str(value)
