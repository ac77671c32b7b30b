"""What *Diagnose* measured: each engine in the running loop, what had been predicted, and what came of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .markup import Html, el, join, listed, section, table
from .words import clock, duration, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .subject import Subject


def diagnoses(subject: Subject) -> Html | None:
    """Every diagnosis of the session, the newest first."""
    found = [event.get("result", event) for event in reversed(subject.analysis.diagnoses)]
    shown = [_one(subject, one) for one in found if isinstance(one, dict) and one.get("runs")]
    if not shown:
        return None
    note = "Each engine ran in the training loop itself for a stretch; quartiles are of the seconds of that stretch."
    return section("diagnoses", "Diagnose", note, *shown)


def _one(subject: Subject, result: Mapping[str, Any]) -> Html:
    origin = subject.snapshot.schema.origin
    rows = []
    for run in result["runs"]:
        spread = [_of(run, name) for name in ("rate_low", "rate_high")]
        known = all(math.isfinite(one) for one in spread)
        rows.append(
            [
                str(run.get("backend")),
                number(_of(run, "rate")),
                f"{number(spread[0])} to {number(spread[1])}" if known else "-",
                _percent(100 * _of(run, "of_ceiling")),
                _ms(_of(run, "wait")),
                _ms(_of(run, "step")),
                _percent(_of(run, "cpu_p95")),
                _percent(_of(run, "gpu_p50")),
                _counts(run),
                str(run.get("problem") or "-"),
            ]
        )
    head = ["engine", "images/s", "quartiles", "of the ceiling", "data wait", "step", "CPU p95", "GPU p50", "counted",
            "problem"]  # fmt: skip
    began = _of(result, "began")
    when = f", {clock(origin + began, subject.where)}" if math.isfinite(began) else ""
    title = f"{result.get('name') or result.get('loader')}{when}"
    label = f"Diagnose of {title}"
    gains = [_gain(one) for one in result.get("measured") or ()]
    predicted = [_gain(one) for one in result.get("predicted") or ()]
    return join(
        el("h3", title),
        el("p", str(result.get("sentence") or result.get("message") or "")),
        table(head, rows, numbers=range(1, 8), label=label),
        el("p", f"Predicted: {'; '.join(predicted)}.", class_="of") if predicted else None,
        el("p", f"Measured: {'; '.join(gains)}.", class_="of") if gains else None,
        listed(str(one) for one in result.get("cannot") or ()) if result.get("cannot") else None,
    )


def _counts(run: Mapping[str, Any]) -> str:
    """`320 steps, 10,240 images in 8.0 s`."""
    seconds = _of(run, "seconds")
    words = f"{int(run.get('steps') or 0):,} steps, {int(run.get('samples') or 0):,} images"
    return f"{words} in {duration(seconds)}" if math.isfinite(seconds) else words


def _gain(gain: Mapping[str, Any]) -> str:
    """`dali-cpu 31 to 46 % of the step time saved`, or what was measured."""
    measured, low, high = (_of(gain, name) for name in ("measured", "low", "high"))
    if math.isfinite(measured):
        words = f"{100 * measured:.0f} %"
    elif math.isfinite(low) and math.isfinite(high):
        words = f"{100 * low:.0f} to {100 * high:.0f} %"
    else:
        return f"{gain.get('action')}: cannot be told"
    return f"{gain.get('action')} {words.replace('-', '−')} of the step time saved"


def _of(values: Mapping[str, Any], name: str) -> float:
    """A number of JSON; NaN where there is none."""
    found = values.get(name)
    return float(found) if isinstance(found, int | float) else math.nan


def _percent(value: float) -> str:
    return f"{value:.0f} %" if math.isfinite(value) else "-"


def _ms(value: float) -> str:
    return f"{number(value)} ms" if math.isfinite(value) else "-"
