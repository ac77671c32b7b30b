"""One HTML file that shows a whole session offline.

Its text comes from templates; its charts are drawn by the page's own code (`widgets/src/report.ts`) from the session
that is embedded in the file. The policy that the file declares names the only two scripts that may run by their
hashes, forbids `eval`, and allows no request at all: whatever a name in the data holds, it cannot run or fetch
anything. Words and small pictures come before the scripts, so that they are read while the charts are being made.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from ..analysis.session_analysis import analyse
from ..analysis.switches import REPLAYS, switches
from ..stream import bokehjs
from . import machine, verdict_section
from .embedded import embed
from .formats import zone
from .privacy import clean
from .sections import SECTIONS, fill, section
from .subject import Subject

if TYPE_CHECKING:
    from ..analysis.results import Analysis
    from ..store import Snapshot

STYLE = Path(__file__).with_name("page.css")
STATIC = Path(__file__).parents[1] / "static"  # what npm builds of `widgets/`


def render(snapshot: Snapshot, analysis: Analysis | None = None) -> str:
    """The session as the text of one HTML file, to be written as UTF-8 with line feeds as they are.

    Args:
        snapshot: of a live or a recorded session; one without rows gives a page that says so.
        analysis: of the snapshot as `privacy.clean` leaves it; made here if not given.
    """
    snapshot = clean(snapshot)
    where = zone(snapshot.schema.origin)
    subject = Subject(snapshot, analyse(snapshot) if analysis is None else analysis, where)
    parts = [(key, name, made) for key, (name, _) in SECTIONS.items() if (made := section(subject, key)) is not None]
    session, bin_s = embed(snapshot, 1000 * where.utcoffset(None).total_seconds())
    bokeh = _read(bokehjs.path())
    script = _read(STATIC / "report.js")
    return fill(
        "page",
        policy=policy([bokeh, script]),
        version=str(snapshot.facts.get("versions", {}).get("kernel-monitor", "")),
        style=_code(_read(STATIC / "report.css") + _read(STYLE)),
        verdict=fill("verdict", subject=subject, **verdict_section.verdict(subject)),
        change=fill("change", subject=subject, **verdict_section.change(subject)),
        sections=parts,
        replayed=any(event["target"] == REPLAYS for event in switches(snapshot.events)),
        bin_s=bin_s,
        zone=where.tzname(None),
        session=session,
        bokeh=_code(bokeh),
        script=_code(script),
        **machine.header(subject),
    )


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


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _code(text: str) -> Markup:
    """Code of ours or of Bokeh's, which stands in the page as it is: nothing of a session is in it."""
    return Markup(text)  # noqa: S704
