"""The rule on single samples that take far longer than the others, and on the transforms that take most time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...steps.sample_times import LEAST_SLOW, LOST
from ..frames import loader_names
from ..results import Advice, Evidence, Finding
from .rule import Check, Parameter, Rule, Session, SignalMissing, plain_advice


def slow(session: Session, check: Check) -> Finding:
    told = [event for event in session.snapshot.events if event["kind"] == "sample-times"]
    newest = {str(event["loader"]): event for event in told}
    if not newest:
        raise SignalMissing("times of single samples: no DataLoader whose samples could be timed computed enough")
    names = loader_names(session.snapshot)
    evidence: list[Evidence] = []
    advised: list[Advice] = []
    fires = 0
    for loader, event in newest.items():
        fired = event["slow"] >= check["slow"] and event["lost"] > check["lost"]
        whose = f"{names.get(loader, loader)}: " if len(newest) > 1 else ""
        evidence.append(
            Evidence(
                whose + (_slow_text(event) if fired else _usual_text(event)),
                100 * event["lost"],
                100 * check["lost"],
                "% of the loop's time",
                event["slow"] / max(1, event["samples"]),
                end=event["time"],
            )
        )
        fires += fired
        advised += _advice(event) if fired else ()
    return check.finding(
        fires > 0, advised, *evidence, samples=sum(event["samples"] for event in newest.values()), times=max(1, fires)
    )


def _slow_text(event: Mapping[str, Any]) -> str:
    """Return the sentence on slow samples, without its stop."""
    share = 100 * event["slow"] / event["samples"]
    every = max(1, round(event["steps"] / max(1, event["held"])))
    held = "hold up each batch" if every == 1 else f"hold up each {_ordinal(every)} batch"
    text = (
        f"{max(0.1, share):.{0 if share >= 0.95 else 1}f} % of the {'files' if event['files'] else 'samples'} take "
        f"{event['times']:,.0f} × the median of {1e3 * event['median']:,.1f} ms and {held}"
    )
    if event["names"]:
        text += f": {', '.join(event['names'])}"
        text += ", …" if event["slow"] > len(event["names"]) else ""
    if event["cause"] is not None:
        where = event["cause"] or "the data set itself, outside of its transforms"
        text += f". Of their time {100 * event['cause_share']:.0f} % is spent in {where}"
    if event["transform"] is not None:
        text += f"; {event['transform']} takes {100 * event['share']:.0f} % of the transforms' time"
    return text


def _usual_text(event: Mapping[str, Any]) -> str:
    text = f"{event['samples']:,} samples, median {1e3 * event['median']:,.1f} ms, {event['slow']:,} of them slow"
    if event["transform"] is not None:
        text += f"; {event['transform']} takes {100 * event['share']:.0f} % of the transforms' time"
    return text


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def _advice(event: Mapping[str, Any]) -> tuple[Advice, ...]:
    those = "files" if event["files"] else "samples"
    if event["cause"]:
        return plain_advice(f"Look at what {event['cause']} does with these {those}, or give it smaller images.")
    return plain_advice(
        f"Look at what these {those} have in common: larger images, another format, slower storage. Convert or "
        "shrink them once, before the training."
    )


RULES = (
    Rule(
        "slow-samples",
        "A few samples hold up the batches",
        {
            "slow": Parameter(LEAST_SLOW, "samples that must have taken 8 times the median, and 25 ms more"),
            "lost": Parameter(LOST, "of the loop's time: more than this it waited for batches with such samples"),
        },
        "Fires when the loop waits for batches because of a few samples in them. Names the slowest, and what most of "
        "their time went to: a transform, or the data set itself. Samples are timed where a DataLoader computes them, "
        "in the last 2 minutes; of batches only those count that the loop waited for. "
        "Abstains where samples cannot be timed.",
        "This project's. Times of transforms as Lotus has them, slow samples as MinatoLoader.",
        of_session=slow,
        with_verdict=True,
    ),
)
