"""One HTML file that shows a whole session offline.

The policy that the file declares names the only two scripts that may run by their hashes, forbids `eval`, and allows
no request at all: whatever a name in the data holds, it cannot run or fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from bokeh.embed import json_item
from bokeh.resources import Resources

from ..diagnose.switches import REPLAYS, switches
from ..views import layout
from . import machine, sections
from .fill import fill
from .markup import Html, join
from .privacy import clean
from .shown import charts_with_data, drawn, row_bytes
from .words import zone

if TYPE_CHECKING:
    from bokeh.models import LayoutDOM

    from ..store import Snapshot

_HERE = Path(__file__).parent


def render(snapshot: Snapshot) -> str:
    """The session as the text of one HTML file, to be written as UTF-8 with line feeds as they are.

    Args:
        snapshot: of a live or a recorded session; one without rows gives a page that says so.
    """
    snapshot = clean(snapshot)
    where = zone(snapshot.schema.origin)
    bokeh = "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)
    script = _read("page.js")
    tables = [
        sections.statistics(snapshot),
        sections.stretches(snapshot, where),
        sections.happened(snapshot, where),
        sections.deliveries(snapshot),
        sections.skipped(snapshot),
        machine.gpus(snapshot),
        machine.processes(snapshot),
        machine.limits(snapshot),
    ]
    charts = layout(snapshot.schema, interactive=True, charts=charts_with_data(snapshot))
    rows, width = drawn(snapshot, row_bytes(charts))
    fill(charts, rows)
    version = str(snapshot.facts.get("versions", {}).get("kernel-monitor", ""))
    offset = where.utcoffset(None).total_seconds()
    return Template(_read("page.html")).substitute(
        policy=escape(policy([bokeh, script])),
        version=escape(version),
        title=escape(sections.title(snapshot, where)),
        style=_read("page.css"),
        header=sections.header(snapshot, where),
        switch=sections.switch(snapshot) or "",
        bands=", hatched stretches replayed batches" if REPLAYS in _targets(snapshot) else "",
        zone=escape(str(where.tzname(None))),
        tables=join(*tables),
        binned=f", all values means over bins of {width:.3g} s" if width else "",
        document=_document(charts, zone_ms=offset * 1000),
        bokeh=bokeh,
        script=script,
    )


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
    text = json.dumps({**json_item(charts), **more}, separators=(",", ":"))
    # Inside a script element only these characters can end it or start a comment; in JSON they only occur in strings.
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
