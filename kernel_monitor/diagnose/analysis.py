"""Everything that can be said of a session, and what cannot be said and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..errors import MonitorError
from .changes import changes
from .cost import costs
from .decision import Decision
from .epochs import epoch_counts
from .feeding import feeding
from .judging import advised, judge
from .model import Advice, Analysis, Change, EpochCount, Finding, Stretch, Verdict
from .rules import evaluate
from .standing import in_use, representative, standing, withheld
from .stretches import stretches
from .tried import Pair, pairs
from .verdict import THRESHOLDS

if TYPE_CHECKING:
    from ..store import Snapshot

NOTHING = Verdict(
    "undetermined",
    None,
    "No loader delivered anything that was measured.",
    (Advice("Wrap the loop's DataLoader with switchable(loader), or any iterable with watch_loader(iterable)."),),
    missing=("a loader: switchable(loader)",),
)
Found = TypeVar("Found")


def analyse(
    snapshot: Snapshot,
    *,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    price: float | None = None,
    currency: str | None = None,
    others: Sequence[Snapshot] = (),
) -> Analysis:
    """Analyse a session. What was recorded never makes it raise: `cannot` says what could not be said.

    Args:
        snapshot: the session.
        thresholds: of rules by their ids, and of `verdict` (see `verdict.THRESHOLDS`); those not given are the usual.
        price: per hour; the session's own if None.
        currency: what stands with it.
        others: the sessions of other ranks of the same training.

    Raises:
        MonitorError: a threshold or the price that was given is none.
    """
    cannot: list[str] = []
    given = dict(thresholds or {})
    limits = _limits(given.pop("verdict", {}))

    def attempt(what: str, make: Callable[[], Found], otherwise: Found, *, asked: bool = False) -> Found:
        """`make()`; where the session is not as it must be, `otherwise` and a sentence; raises what was `asked`."""
        try:
            # Recorded numbers may be anything; NumPy's warnings on them are no news for a person.
            with np.errstate(all="ignore"):
                return make()
        except Exception as error:
            if asked and isinstance(error, MonitorError):
                raise
            cannot.append(f"{what} could not be computed from this session ({type(error).__name__}: {error}).")
            return otherwise

    parts: tuple[Stretch, ...] = attempt("The stretches", lambda: stretches(snapshot), ())
    epochs: tuple[EpochCount, ...] = attempt("The epochs' counts", lambda: epoch_counts(snapshot), ())
    states = {str(state.get("id")): state for state in snapshot.loaders}

    switched: tuple[Pair, ...] = attempt("What switches brought", lambda: pairs(snapshot.steps, snapshot.events), ())

    def judged(one: Stretch, until: float | None = None) -> Verdict:
        text = f"The stretch {one.key} could not be judged."
        otherwise = Verdict("undetermined", one.key, text, (Advice("Compare its figures by hand."),))
        return attempt(
            f"The verdict on {one.key}",
            lambda: judge(
                snapshot, snapshot.steps, one, states.get(one.loader, {}), limits,
                events=snapshot.events, switched=switched, until=until,
            ),
            otherwise,
        )  # fmt: skip

    verdicts = tuple(judged(one) for one in parts)
    compared: tuple[Change, ...] = attempt(
        "The comparison of stretches", lambda: changes(parts, snapshot.events, verdicts=verdicts, epochs=epochs), ()
    )
    used: dict[str, str] = attempt("The engines in use", lambda: in_use(snapshot.events), {})
    stands = standing(parts, used)
    decisions: dict[str, Decision] = {}
    said = []
    for one, found in zip(parts, verdicts, strict=True):
        current = one is stands[one.loader]
        # What is advised now may rest on all that was measured; what was said of a past stretch may not.
        newest = judged(one, math.inf) if current else found
        why = withheld(one, stands[one.loader], used.get(one.loader))
        state = states.get(one.loader, {})
        told, decisions[one.key] = attempt(
            f"The advice on {one.key}",
            lambda: advised(snapshot, one, newest, state, why),  # noqa: B023 - called at once
            (newest, Decision(one, withheld=why)),
        )
        said.append(told)
    verdicts = tuple(said)
    stretch = representative(parts, used)
    per_hour = _number(price if price is not None else snapshot.facts.get("price"))
    unit = str(currency if currency is not None else snapshot.facts.get("currency") or "")
    nothing: tuple[Finding, ...] = ()
    findings = attempt(
        "The rules",
        lambda: evaluate(snapshot, parts, given, others=others, decisions=decisions),
        nothing,
        asked=bool(given),
    )
    order = {"fired": 0, "abstained": 1, "quiet": 2}
    cannot += _cannot(snapshot, parts, epochs)
    return Analysis(
        stretches=parts,
        epochs=epochs,
        verdict=next((one for one in verdicts if stretch is not None and one.stretch == stretch.key), NOTHING),
        verdicts=verdicts,
        changes=compared,
        findings=tuple(sorted(findings, key=lambda one: order.get(one.state, 3))),
        costs=()
        if per_hour is None
        else attempt("The cost", lambda: costs(parts, epochs, per_hour, unit), (), asked=price is not None),
        feeding=attempt("What feeding the loop takes", lambda: feeding(snapshot, parts, decisions, stretch), None),
        diagnoses=_results(snapshot, "diagnosis"),
        profiles=_results(snapshot, "profile"),
        cannot=tuple(dict.fromkeys(cannot)),
    )


def _limits(given: Mapping[str, float]) -> dict[str, float]:
    unknown = sorted(set(given) - set(THRESHOLDS))
    if unknown:
        raise MonitorError(f"There is no threshold {unknown[0]!r} of the verdict. There are: {', '.join(THRESHOLDS)}.")
    return {**THRESHOLDS, **given}


def _number(value: object) -> float | None:
    """A price as facts hold it: whatever is no number there is no price."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _results(snapshot: Snapshot, kind: str) -> tuple[dict[str, Any], ...]:
    return tuple(dict(event) for event in snapshot.events if event.get("kind") == kind)


def _cannot(snapshot: Snapshot, parts: Sequence[Stretch], epochs: Sequence[EpochCount]) -> list[str]:
    """What this session does not tell, a sentence each."""
    found = []
    if len(snapshot.time) == 0:
        found.append("Nothing was sampled: the session has no row.")
    elif (np.diff(snapshot.time) <= 0).any():
        found.append("The clock of this session went back: times across that place are not to be trusted.")
    if not parts:
        found.append("No loader delivered anything: there is no stretch to judge, and no rate.")
    elif not len(snapshot.steps):
        found.append(
            "This session kept no single steps (an older version recorded it): "
            "shares come from the means of frames, and phases and warm-up are not told apart."
        )
    elif not any(one.phases for one in parts):
        found.append(
            "No model was watched: what a step is made of beside the wait is not known. "
            "monitor.watch(model, optimizer) measures it."
        )
    if not snapshot.schema.gpus:
        reason = snapshot.schema.gpu_reason or "no reason was told"
        found.append(f"No GPU was measured ({reason}): nothing is said of one.")
    unfinished = [one for one in epochs if not one.finished]
    if unfinished:
        one = unfinished[-1]
        found.append(f"Epoch {one.epoch + 1} of {one.name} is not finished: its time is not compared with others.")
    if snapshot.steps.dropped:
        found.append(f"{snapshot.steps.dropped:,} steps were not kept one by one: shares are of those that were.")
    return found
