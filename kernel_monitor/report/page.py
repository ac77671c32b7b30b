"""One HTML file that shows a whole session offline.

The policy that the file declares names the only two scripts that may run by their hashes, forbids `eval`, and allows
no request at all: whatever a name in the data holds, it cannot run or fetch anything. Words and small pictures come
before the scripts, so that they are read while the charts are being made.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from bokeh.document import Document
from bokeh.resources import Resources

from ..diagnose.analysis import analyse
from ..diagnose.switches import REPLAYS, switches
from ..store.charts import shown_series
from ..views import layout
from . import (
    costs,
    diagnoses,
    epochs,
    header,
    loading,
    machine,
    method,
    operators,
    percentiles,
    rules,
    stretches,
    verdict,
)
from .fill import fill
from .markup import Html, el, join, section
from .privacy import clean
from .shown import charts_with_data, drawn, only, row_bytes
from .subject import Subject
from .words import zone

if TYPE_CHECKING:
    from collections.abc import Callable

    from bokeh.models import LayoutDOM

    from ..diagnose.model import Analysis
    from ..store import Snapshot

_HERE = Path(__file__).parent
Part = tuple[str, str, "Callable[[Subject], Html | None]"]
"""A part of the page: its id, its name in the contents, what makes it (None where the session has none of it)."""

PARTS: tuple[Part, ...] = (
    ("phases", "Phases", stretches.phases),
    ("histograms", "GPU utilisation", stretches.gpu_histograms),
    ("stretches", "Stretches", stretches.stretches),
    ("percentiles", "Percentiles", percentiles.percentiles),
    ("rules", "Rules", rules.rules),
    ("verdicts", "Verdicts", verdict.verdicts),
    ("diagnoses", "Diagnose", diagnoses.diagnoses),
    ("operators", "Operators", operators.operators),
    ("cost", "Cost", costs.costs),
    ("epochs", "Epochs", epochs.epochs),
    ("loading", "Data loading", loading.loading),
    ("cannot", "What it cannot say", verdict.cannot),
    ("machine", "Machine", lambda subject: header.facts(subject.snapshot)),
    ("gpus", "GPUs", lambda subject: machine.gpus(subject.snapshot)),
    ("processes", "Processes", lambda subject: machine.processes(subject.snapshot)),
    ("limits", "Limits", lambda subject: machine.limits(subject.snapshot)),
    ("method", "Method", method.method),
)
"""What stands behind the charts, in this order."""
BEGINNING = (("verdict", "Verdict"), ("charts-part", "Charts"))


def render(snapshot: Snapshot, analysis: Analysis | None = None) -> str:
    """The session as the text of one HTML file, to be written as UTF-8 with line feeds as they are.

    Args:
        snapshot: of a live or a recorded session; one without rows gives a page that says so.
        analysis: of the snapshot as `privacy.clean` leaves it; made here if not given.
    """
    snapshot = clean(snapshot)
    subject = Subject(snapshot, analyse(snapshot) if analysis is None else analysis, zone(snapshot.schema.origin))
    where = subject.where
    bokeh = "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)
    script = _read("page.js")
    parts = [(key, name, made) for key, name, make in PARTS if (made := _part(subject, key, name, make)) is not None]
    ids = charts_with_data(snapshot)
    charts = layout(snapshot.schema, interactive=True, charts=ids, paged=True)
    # Bokeh walks through all its models for every question; this one answers them all.
    models = list(charts.references())
    rows, width = drawn(only(snapshot, shown_series(snapshot.schema, ids)), row_bytes(models))
    fill(models, rows)
    version = str(snapshot.facts.get("versions", {}).get("kernel-monitor", ""))
    offset = where.utcoffset(None).total_seconds()
    return Template(_read("page.html")).substitute(
        policy=escape(policy([bokeh, script])),
        version=escape(version),
        title=escape(header.title(snapshot, where)),
        style=_read("page.css"),
        header=header.header(snapshot, where),
        contents=_contents([*BEGINNING, *((key, name) for key, name, _ in parts)]),
        verdict=verdict.verdict(subject),
        change=verdict.strip_section(subject) or "",
        bands=", hatched stretches replayed batches" if REPLAYS in _targets(snapshot) else "",
        zone=escape(str(where.tzname(None))),
        parts=join(*(made for _, _, made in parts)),
        binned=f", all values means over bins of {width:.3g} s" if width else "",
        document=_document(charts, zone_ms=offset * 1000),
        bokeh=bokeh,
        script=script,
    )


def _part(subject: Subject, key: str, name: str, make: Callable[[Subject], Html | None]) -> Html | None:
    """A part of the page; of a recording, whose file may be of any origin, a sentence where it cannot be made."""
    try:
        return make(subject)
    except Exception as error:
        if "recorded" not in subject.snapshot.facts:
            raise
        reason = f"{type(error).__name__}: {error}"
        return section(key, name, None, el("p", f"What was recorded cannot be made into this part ({reason})."))


def _contents(entries: list[tuple[str, str]]) -> Html:
    links = [el("li", el("a", name, href=f"#{key}")) for key, name in entries]
    return el("nav", el("ul", *links), aria_label="Contents")


def _targets(snapshot: Snapshot) -> set[str]:
    return {str(event["target"]) for event in switches(snapshot.events)}


def policy(scripts: list[str]) -> str:
    """A Content-Security-Policy under which exactly these inline scripts run and nothing is fetched."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    # Bokeh writes style elements and attributes, and its cursors and tool icons are data addresses.
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _document(charts: LayoutDOM, **more: Any) -> Html:
    """What `Bokeh.embed.embed_item` takes; `bokeh.embed.json_item` gives the same after four more walks."""
    document = Document(title="")
    document.add_root(charts)
    made = document.to_json(deferred=False)
    item = {"target_id": None, "root_id": charts.id, "doc": made, "version": made["version"], **more}
    text = json.dumps(item, separators=(",", ":"))
    # Inside a script element only these characters can end it or start a comment; in JSON they only occur in strings.
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
