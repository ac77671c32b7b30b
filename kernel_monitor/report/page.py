"""One HTML file that shows a whole session offline.

Its text comes from templates; its charts are drawn by the page's own code (`widgets/src/report.ts`) from the session
that is embedded in the file. The policy that the file declares names the only two scripts that may run by their
hashes, forbids `eval`, and allows no request at all: whatever a name in the data holds, it cannot run or fetch
anything. Words and small pictures come before the scripts, so that they are read while the charts are being made.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from ..analysis.results import Analysis, faster
from ..analysis.segments import REPLAYS, switches
from ..analysis.session_analysis import analyse
from ..analysis.verdict import past
from ..store import Snapshot
from ..stream import chart_documents
from . import findings, sections, summary
from .embedded import embed
from .formats import FILTERS, zone
from .privacy import clean
from .subject import Subject, statistic

STYLE = Path(__file__).with_name("page.css")
_STATIC = Path(__file__).parents[1] / "static"  # what npm builds of `widgets/`
TEMPLATES = Path(__file__).parent / "templates"
Context = dict[str, Any]

FIRST: dict[str, tuple[str, Callable[[Subject], Context | None]]] = {
    "summary": ("Summary", summary.summary),
    "verdict": ("Verdict", findings.verdict),
}
"""What stands before the charts, as `SECTIONS`."""
SECTIONS: dict[str, tuple[str, Callable[[Subject], Context | None]]] = {
    "phases": ("Phases", sections.phases),
    "histograms": ("GPU utilisation", sections.histograms),
    "segments": ("Segments", sections.table),
    "percentiles": ("Percentiles", sections.percentiles),
    "rules": ("Rules", findings.rules),
    "verdicts": ("Verdicts", findings.verdicts),
    "diagnoses": ("Diagnose", findings.diagnoses),
    "operators": ("Operators", findings.operators),
    "cost": ("Cost", findings.cost),
    "ranks": ("Ranks", findings.ranks),
    "epochs": ("Epochs", findings.epochs),
    "loading": ("Data loading", findings.loading),
    "cannot": ("What it cannot say", findings.cannot),
    "machine": ("Machine", sections.facts),
    "gpus": ("GPUs", sections.gpus),
    "nodes": ("Other machines", sections.nodes),
    "processes": ("Processes", sections.processes),
    "limits": ("Limits", sections.limits),
    "method": ("Method", sections.method),
}
"""What stands behind the charts, in this order: by its id, which is its template's name, the name in the contents and
what it shows; None where the session has none of it."""


def render(snapshot: Snapshot, analysis: Analysis | None = None) -> str:
    """The session as the text of one HTML file, to be written as UTF-8 with line feeds as they are.

    In a process that trains use `client.render_in_process`. A snapshot without rows gives a page that says so. The
    `analysis`, made here if not given, is of the snapshot as `privacy.clean` leaves it.
    """
    snapshot = clean(snapshot)
    where = zone(snapshot.schema.origin)
    subject = Subject(snapshot, analyse(snapshot) if analysis is None else analysis, where)
    parts = [(key, name, made) for key, (name, _) in SECTIONS.items() if (made := section(subject, key)) is not None]
    session, bin_s = embed(snapshot, 1000 * where.utcoffset(None).total_seconds())
    bokeh = _read(chart_documents.path())
    script = _read(_STATIC / "report.js")
    return fill_page(
        "page",
        [_STATIC / "report.css", STYLE],
        [bokeh, script],
        version=str(snapshot.facts.get("versions", {}).get("kernel-monitor", "")),
        summary=section(subject, "summary"),
        verdict=section(subject, "verdict"),
        sections=parts,
        replayed=any(event["target"] == REPLAYS for event in switches(snapshot.events)),
        bin_s=bin_s,
        zone=where.tzname(None),
        session=session,
        bokeh=_code(bokeh),
        script=_code(script),
        **sections.header(subject),
    )


@cache
def environment() -> Environment:
    """Every template escapes what it is given."""
    made = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    # In a chart document the first mention of a model defines it: what comes first must stay first.
    made.policies["json.dumps_kwargs"] = {"sort_keys": False, "separators": (",", ":")}
    made.filters.update(FILTERS)
    made.filters["past"] = past  # a report is read when its loops have ended
    made.globals.update(statistic=statistic, faster=faster)
    return made


def compile_templates() -> None:
    """Load every template, which costs a tenth of a report's time, before the session is there."""
    for name in environment().list_templates():
        environment().get_template(name)


def fill(template: str, **context: Any) -> Markup:
    """Return a template with what it shows, by the template's name."""
    return Markup(environment().get_template(f"{template}.html").render(context))  # noqa: S704 - it escapes all it holds


def fill_page(
    template: str, styles: Sequence[Path], scripts: Sequence[str] = (), folder: Path | None = None, **context: Any
) -> str:
    """Return a page that extends `base.html`: one file that asks nothing of the network.

    Args:
        template: its name.
        styles: its style sheets, in their order.
        scripts: the only scripts that its policy lets run; the template places them.
        folder: where it is if not among the report's templates, which it may use all the same.
        context: what it shows; among it the `title`, and the `version` of the package that measured.
    """
    templates = environment()
    if folder is not None:
        templates = templates.overlay(loader=FileSystemLoader([folder, TEMPLATES]))
    style = _code("".join(map(_read, styles)))
    return templates.get_template(f"{template}.html").render(policy=policy(scripts), style=style, **context)


def section(subject: Subject, key: str) -> Markup | None:
    """A part of the page by its id.

    A recording may be of any origin: what cannot be shown of it gives a sentence, not an error.
    """
    name, make = {**FIRST, **SECTIONS}[key]
    try:
        context = make(subject)
        return None if context is None else fill(key, subject=subject, **context)
    except Exception as error:
        if "recorded" not in subject.snapshot.facts:
            raise
        return fill("failed", key=key, name=name, reason=f"{type(error).__name__}: {error}")


def policy(scripts: Sequence[str]) -> str:
    """Return a Content-Security-Policy under which exactly these inline scripts run and nothing is fetched."""
    allowed = ["default-src 'none'", "style-src 'unsafe-inline'", "base-uri 'none'", "form-action 'none'"]
    if scripts:
        digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
        allowed.append(" ".join(["script-src", *(f"'sha256-{digest}'" for digest in digests)]))
        # Bokeh writes style elements and attributes, and its cursors and tool icons are data addresses.
        allowed.append("img-src data:")
    return "; ".join(allowed)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _code(text: str) -> Markup:
    """Code of ours or of Bokeh's, which stands in the page as it is: nothing of a session is in it."""
    return Markup(text)  # noqa: S704
