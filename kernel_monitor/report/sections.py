"""The parts of the report's page: for each a template and the function that gives it what it shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from . import findings, loading, machine, segments_section
from .formats import FILTERS
from .subject import Subject, statistic

TEMPLATES = Path(__file__).parent / "templates"
Context = dict[str, Any]

SECTIONS: dict[str, tuple[str, Callable[[Subject], Context | None]]] = {
    "phases": ("Phases", segments_section.phases),
    "histograms": ("GPU utilisation", segments_section.histograms),
    "segments": ("Segments", segments_section.table),
    "percentiles": ("Percentiles", segments_section.percentiles),
    "rules": ("Rules", findings.rules),
    "verdicts": ("Verdicts", findings.verdicts),
    "diagnoses": ("Diagnose", findings.diagnoses),
    "operators": ("Operators", findings.operators),
    "cost": ("Cost", findings.cost),
    "epochs": ("Epochs", loading.epochs),
    "loading": ("Data loading", loading.loading),
    "cannot": ("What it cannot say", findings.cannot),
    "machine": ("Machine", machine.facts),
    "gpus": ("GPUs", machine.gpus),
    "processes": ("Processes", machine.processes),
    "limits": ("Limits", machine.limits),
    "method": ("Method", machine.method),
}
"""What stands behind the charts, in this order: by its id, which is its template's name, the name in the contents and
what it shows; None where the session has none of it."""


@cache
def environment() -> Environment:
    """Every template escapes what it is given."""
    made = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    # In a chart document the first mention of a model defines it: what comes first must stay first.
    made.policies["json.dumps_kwargs"] = {"sort_keys": False, "separators": (",", ":")}
    made.filters.update(FILTERS)
    made.globals.update(statistic=statistic)
    return made


def compile_templates() -> None:
    """Load every template, which costs a tenth of a report's time, before the session is there."""
    for name in environment().list_templates():
        environment().get_template(name)


def fill(template: str, **context: Any) -> Markup:
    return Markup(environment().get_template(f"{template}.html").render(context))  # noqa: S704 - it escapes all it holds


def section(subject: Subject, key: str) -> Markup | None:
    """A part of the page by its id.

    A recording may be of any origin: what cannot be shown of it gives a sentence, not an error.
    """
    name, make = SECTIONS[key]
    try:
        context = make(subject)
        return None if context is None else fill(key, subject=subject, **context)
    except Exception as error:
        if "recorded" not in subject.snapshot.facts:
            raise
        return fill("failed", key=key, name=name, reason=f"{type(error).__name__}: {error}")
