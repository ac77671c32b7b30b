"""The analysis of a whole session (`analyse`): segments, verdicts, advice, rules, costs, and what is not known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ..errors import MonitorError
from ..store import Snapshot
from .advice import Decision
from .changes import changes, headline
from .cost import costs, feeding, job_costs, node_price, number
from .frames import Frames
from .gains import SwitchPair, measured_gains, switch_pairs
from .job_figures import job_figures, jobs_text
from .loops import (
    advised_segments,
    engines_in_use,
    epoch_counts,
    representative,
    secondary_loaders,
    secondary_reason,
    withheld_reason,
)
from .results import Advice, Analysis, Change, EpochCount, Finding, Segment, Verdict
from .rules import evaluate, warnings
from .segments import segments
from .verdict import THRESHOLDS, judge, with_advice

NOTHING = Verdict(
    "undetermined",
    None,
    "No loader delivered anything that was measured.",
    (
        Advice(
            "Start the monitor before the loop: every DataLoader is measured. Other iterables: watch_loader(iterable)."
        ),
    ),
    missing=("a loop over a DataLoader",),
)
ORDER = {"fired": 0, "abstained": 1, "quiet": 2}
Found = TypeVar("Found")


def analyse(
    snapshot: Snapshot,
    *,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    price: float | None = None,
    others: Sequence[Snapshot] = (),
) -> Analysis:
    """Analyse a session. A damaged recording never makes it raise: `cannot` lists what is not known.

    Args:
        snapshot: the session.
        thresholds: of rules by their ids, and of `verdict` (see `verdict.THRESHOLDS`); those not given are the usual.
        price: per hour; the session's own if None.
        others: the sessions of other ranks of the same training.

    Raises:
        MonitorError: a threshold or the price that was given is none.
    """
    cannot: list[str] = []
    given = dict(thresholds or {})
    limits = {**THRESHOLDS, **given.pop("verdict", {})}
    unknown = sorted(set(limits) - set(THRESHOLDS))
    if unknown:
        raise MonitorError(f"There is no threshold {unknown[0]!r} of the verdict. There are: {', '.join(THRESHOLDS)}.")

    def attempt(what: str, make: Callable[[], Found], otherwise: Found, *, strict: bool = False) -> Found:
        """Return `make()`; if it fails, note why and return `otherwise`. `strict`: raise its MonitorError."""
        try:
            # Recorded numbers may be anything; NumPy's warnings on them help nobody.
            with np.errstate(all="ignore"):
                return make()
        except Exception as error:  # a recording may hold anything: the rest of the analysis stands
            if strict and isinstance(error, MonitorError):
                raise
            cannot.append(f"{what} could not be computed from this session ({type(error).__name__}: {error}).")
            return otherwise

    frames = Frames(snapshot)
    parts: tuple[Segment, ...] = attempt("The segments", lambda: segments(snapshot, frames), ())
    epochs: tuple[EpochCount, ...] = attempt("The epochs' counts", lambda: epoch_counts(snapshot), ())
    states = {str(state.get("id")): state for state in snapshot.loaders}
    switched: tuple[SwitchPair, ...] = attempt(
        "What switches brought", lambda: switch_pairs(snapshot.steps, snapshot.events), ()
    )

    def judged(segment: Segment, until: float) -> Verdict:
        text = f"The segment {segment.key} could not be judged."
        otherwise = Verdict("undetermined", segment.key, text, (Advice("Compare its figures by hand."),))

        def make() -> Verdict:
            known = measured_gains(snapshot.events, segment, switched, until)
            return judge(frames, segment, states.get(segment.loader, {}), limits, known)

        return attempt(f"The verdict on {segment.key}", make, otherwise)

    verdicts = tuple(judged(segment, segment.end) for segment in parts)
    compared: tuple[Change, ...] = attempt(
        "The comparison of segments", lambda: changes(parts, snapshot.events, verdicts=verdicts, epochs=epochs), ()
    )
    used: dict[str, str] = attempt("The engines in use", lambda: engines_in_use(snapshot.events), {})
    stands = advised_segments(parts, used)
    apart: frozenset[str] = attempt("Which loop trains", lambda: secondary_loaders(snapshot.steps, parts), frozenset())
    chosen = representative(parts, stands, apart)
    decisions: dict[str, Decision] = {}
    final = []
    for segment, verdict in zip(parts, verdicts, strict=True):
        current = segment is stands[segment.loader]
        # Advice for now uses all that was measured; the verdict on a past segment only what was known then.
        newest = judged(segment, math.inf) if current else verdict
        why = withheld_reason(segment, stands[segment.loader], used.get(segment.loader))
        if segment.loader in apart and chosen is not None:
            why = secondary_reason(chosen.name)
        state = states.get(segment.loader, {})
        verdict, decisions[segment.key] = attempt(  # noqa: PLW2901 - the verdict with its advice
            f"The advice on {segment.key}",
            lambda: with_advice(frames, segment, newest, state, why),  # noqa: B023 - called at once
            (newest, Decision(segment, withheld=why)),
        )
        final.append(verdict)
    per_hour = number(snapshot.facts.get("price") if price is None else price)
    per_node = node_price(snapshot)
    unit = str(snapshot.facts.get("currency") or "")
    findings: tuple[Finding, ...] = attempt(
        "The rules", lambda: evaluate(snapshot, parts, given, others, frames, decisions), (), strict=bool(given)
    )
    final = [replace(found, warnings=warnings(findings, found.segment)) for found in final]
    cannot += _cannot(snapshot, parts, epochs)
    return Analysis(
        segments=parts,
        epochs=epochs,
        verdict=next(
            (found for found in final if chosen is not None and found.segment == chosen.key),
            replace(
                attempt("What the ranks did", lambda: _elsewhere(snapshot), NOTHING), warnings=warnings(findings, None)
            ),
        ),
        verdicts=tuple(final),
        changes=compared,
        headline=attempt("The switch that says most", lambda: headline(parts, compared, apart), None),
        findings=tuple(sorted(findings, key=lambda finding: ORDER[finding.state])),
        costs=()
        if per_hour is None
        else attempt(
            "The cost",
            lambda: costs(parts, epochs, per_hour, unit, per_node) + job_costs(snapshot, per_hour, unit),
            (),
            strict=price is not None,
        ),
        feeding=attempt("What feeding the loop takes", lambda: feeding(snapshot, parts, decisions, chosen), None),
        diagnoses=_results(snapshot, "diagnosis"),
        profiles=_results(snapshot, "profile"),
        cannot=tuple(dict.fromkeys(cannot)),
    )


def _elsewhere(snapshot: Snapshot) -> Verdict:
    """Return the verdict where no loop of this process ran: what the ranks did that joined it, if any did."""
    jobs = job_figures(snapshot)
    if not jobs:
        return NOTHING
    return Verdict("undetermined", None, jobs_text(jobs), (Advice("See the ranks, and the rules on them."),))


def _results(snapshot: Snapshot, kind: str) -> tuple[dict[str, Any], ...]:
    return tuple(dict(event) for event in snapshot.events if event.get("kind") == kind)


def _cannot(snapshot: Snapshot, parts: Sequence[Segment], epochs: Sequence[EpochCount]) -> list[str]:
    """Return a sentence on each thing that is not known of this session."""
    found = []
    if len(snapshot.time) == 0:
        found.append("Nothing was sampled: the session has no row.")
    elif (np.diff(snapshot.time) <= 0).any():
        found.append("The clock of this session went back: times across that place are not to be trusted.")
    if not parts:
        of = "of this kernel " if any(rank.steps for rank in snapshot.schema.ranks) else ""
        found.append(f"No loader {of}delivered anything: there is no segment to judge, and no rate.")
    elif not len(snapshot.steps):
        found.append(
            "This session kept no single steps: "
            "shares come from the means of frames, and phases and warm-up are not separated."
        )
    elif not any(segment.phases for segment in parts):
        found.append(
            "No model was watched: what a step is made of beside the wait is not known. "
            "monitor.watch(model, optimizer) measures it."
        )
    if not snapshot.schema.gpus:
        reason = snapshot.schema.gpu_reason or "no reason was reported"
        found.append(f"No GPU was measured ({reason}): nothing is said of one.")
    unfinished = [epoch for epoch in epochs if not epoch.finished]
    if unfinished:
        last = unfinished[-1]
        found.append(f"Epoch {last.epoch + 1} of {last.name} is not finished: its time is not compared with others.")
    if snapshot.steps.dropped:
        found.append(
            f"{snapshot.steps.dropped:,} single steps were not kept: shares are computed from those that were."
        )
    return found
