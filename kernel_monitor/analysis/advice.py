"""The sentences of advice on a loader and its machine, each with what it is for or against; made from a `Decision`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .decision import IDLE, WATCHED
from .results import Advice, Point

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .decision import Crowd, Decision, Outlook
    from .results import Gain

MOST_CORES = 128  # of one machine: two sockets of 64 cores. Where more are needed, machines beside it are.
WRAP = "Wrap the DataLoader with switchable(loader): its workers can then be raised, and DALI tried, in the run."


def say(decision: Decision, text: str, *points: Point) -> Advice:
    """A sentence for the decision's segment."""
    return Advice(text, points, decision.segment.key)


def engines(decision: Decision) -> tuple[Advice, ...]:
    """Advice on the other engines: which one to take, which are no faster, which are not known."""
    if decision.withheld is not None or not decision.engines:
        return ()
    best = decision.best
    if best is not None and best.gain is not None:
        return (say(decision, f"Switch to {best.engine}: {_saves(best.gain)}.", *_points([best])),)
    found = [
        say(decision, f"{engine.engine} would not be faster here: {_costs(engine.gain)}.", *_points([engine]))
        for engine in decision.engines
        if engine.stance == "against" and engine.gain is not None
    ]
    rest = [engine for engine in decision.engines if engine.stance == "neutral"]
    near = [engine for engine in rest if engine.gain is not None and math.isfinite(engine.gain.measured)]
    if near:
        names = _names(near)
        by_diagnose = all(engine.gain is not None and engine.gain.by == "Diagnose" for engine in near)
        measured = "Diagnose" if by_diagnose else "A switch"
        words = f"{measured} found no clear difference between {decision.segment.backend} and {names}."
        found.append(say(decision, words, *_points(near)))
    unknown = [engine for engine in rest if engine not in near]
    if unknown and decision.waits:
        words = "the other engines" if len(unknown) == len(decision.engines) else _names(unknown)
        found.append(say(decision, f"Diagnose tries {words} in this loop.", *_points(unknown)))
    return tuple(found)


def ready(decision: Decision, engine: Outlook) -> Advice:
    """An engine offered, with what is to be expected of it."""
    head, gain = f"{engine.engine} is ready", engine.gain
    if gain is None:
        text = f"{head}. Nobody has measured it in this loop yet: try it, the way back is one click."
    elif math.isfinite(gain.measured):
        text = f"{head}: {_saves(gain)}."
    elif gain.low >= 0:
        text = f"{head} and should save {100 * gain.low:.0f} to {100 * gain.high:.0f} % of the step time."
    else:
        text = f"{head}: {_costs(gain)}. Try it: the way back is one click."
    return say(decision, text, *_points([engine]))


def crowd(decision: Decision, found: Crowd | None = None) -> Advice | None:
    """Whether more or fewer workers or threads; None where that is not known, or was changed since."""
    found = decision.crowd() if found is None else found
    if found is None or decision.withheld is not None:
        return None
    word, many = found.word, f"{found.many} {found.word.removesuffix('s') if found.many == 1 else found.word}"
    more, busy = Point(word, "more", "against"), f"(median {decision.load:.0f} % busy)"
    match found.reason:
        case "idle":
            text = f"Raise the {word} from {found.many} to {found.wanted}: the cores idle {busy} while the loop waits."
            return say(decision, text, Point(word, "more", "for"))
        case "full":
            text = (
                f"Lower the {word} from {found.many} to {found.wanted} and compare: the cores are full, and the loop's "
                "own thread, which feeds the GPU, has to share them."
            )
            return say(decision, text, Point(word, "fewer", "for"))
        case "many":
            text = f"Lower the {word} from {found.many} to {found.wanted}: more than the cores can run only get in "
            return say(decision, f"{text}each other's way.", Point(word, "fewer", "for"))
        case "busy":
            return say(decision, f"More {word} than {found.many} would not help: the cores are busy {busy}.", more)
        case "not waiting":
            return say(decision, f"More {word} would bring next to nothing: the step is {decision.kind}.", more)
        case "no core left":
            return say(decision, f"More {word} would not help: {many} for {decision.cores:g} cores.", more)
        case "undetermined":
            text = (
                f"Whether the loop waits for its data is not settled; if it does, raise the {word} from {found.many}."
            )
            return say(decision, text, Point(word, "more", "neutral"))
    return say(decision, f"Raise the {word} from {found.many} if the cores idle.", Point(word, "more", "neutral"))


def raise_crowd(decision: Decision) -> tuple[Advice, ...]:
    """Advice to raise the workers or threads, where cores idle while the loop waits; empty elsewhere."""
    found = decision.crowd()
    advised = crowd(decision, found) if found is not None and found.reason == "idle" else None
    return () if advised is None else (advised,)


def storage(decision: Decision) -> Advice | None:
    """Where as many workers as there are cores leave these idle."""
    found = decision.crowd()
    if found is None or decision.segment.backend != "torchvision":
        return None
    if found.reason != "no core left" or not decision.load < IDLE:
        return None
    text = (
        f"{found.many} workers leave the cores idle (median {decision.load:.0f} % busy): they wait for something else "
        "than the CPU, most likely the storage. See the rules on I/O before adding cores."
    )
    return say(decision, text, Point("storage", "faster", "for"), Point("workers", "more", "against"))


def cores(decision: Decision) -> Advice:
    """Whether more cores would feed the loop."""
    key, needed = decision.segment.key, decision.needed
    more = Point("cores", "more", "for")
    if not math.isfinite(needed):
        text = f"A machine with more CPU cores for each GPU; how many is not known from {key}."
        return say(decision, text, more)
    text = f"About {math.ceil(needed - 1e-9):,} cores feed this loop; this process may use {decision.cores:g}."
    if needed <= decision.cores:
        text += " They are enough by this estimate: look at what else runs on them."
        return say(decision, text, Point("cores", "more", "against"))
    if needed <= MOST_CORES:
        text += " Take a machine with more cores for each GPU, or put CPU machines beside this one."
        return say(decision, text, more)
    return say(decision, f"{text} No one machine has so many: put CPU machines beside this one.", more)


def next_step(decision: Decision, missing: Sequence[str] = ()) -> tuple[Advice, ...]:
    """What to do next: the advice of a verdict.

    Args:
        decision: on its segment.
        missing: what would have to be measured to say more.
    """
    segment = decision.segment
    if decision.withheld is not None:
        return (over(decision),)
    if segment.synthetic:
        text = "Switch back to a loader to judge it; its rate beside this one says how much there is to gain."
        return (say(decision, text, Point("engine", "synthetic", "against")),)
    found = engines(decision)
    if decision.kind == "input-bound":
        return _relief(decision, found)
    switch = found if decision.best is not None else ()
    if decision.kind == "copy-bound":
        text = "Pin the loader's memory (pin_memory=True) and copy with non_blocking=True, or send smaller types."
    elif decision.kind == "compute-bound":
        text = "Profile 10 steps to see the operators; try mixed precision."
        if not switch:
            slow = [engine for engine in decision.engines if engine.stance == "against"]
            nothing = Point("loading", "faster", "against")
            return (say(decision, f"A faster loader brings nothing. {text}", nothing, *_points(slow)),)
    elif decision.kind == "residual-heavy":
        text = "Profile 10 steps to see what it is: logging, metrics, .item() and other synchronisation are usual."
    else:
        text = f"To say more: {'; '.join(missing)}." if missing else "Let the loop run on."
    return (*switch, say(decision, text))


def feeding(decision: Decision) -> tuple[Advice, ...]:
    """The next thing to do to feed the loop, in the order of `docs/rules.md`; empty where it was changed since."""
    if decision.withheld is not None or decision.segment.synthetic:
        return ()
    if decision.kind == "undetermined":
        best = engines(decision) if decision.best is not None else ()
        untried = [engine for engine in decision.engines if engine.gain is None]
        press = ", or press Diagnose" if untried else ""
        text = f"Whether the loop waits for its data is not settled: let it run on{press}."
        return (*best, say(decision, text, *_points(untried)))
    if decision.kind != "input-bound":
        share = f"{100 * decision.wait:.0f} % of its step" if math.isfinite(decision.wait) else "little"
        text = f"Nothing: the loop waits {share}, so more cores would bring next to nothing."
        return (say(decision, text, Point("cores", "more", "against")),)
    raised, slow_storage = raise_crowd(decision), storage(decision)
    if raised:
        return raised
    if slow_storage is not None:
        return (slow_storage,)
    if decision.segment.backend == WATCHED:
        return (say(decision, WRAP),)
    found_engines = engines(decision)
    if decision.best is not None or decision.untried:
        return found_engines
    return (*found_engines, cores(decision))


def over(decision: Decision) -> Advice:
    """The reason why nothing is advised on a segment."""
    return say(decision, decision.withheld or "Let the loop run on.")


def _relief(decision: Decision, found: tuple[Advice, ...]) -> tuple[Advice, ...]:
    """For a loop that waits for its data."""
    if decision.best is not None:
        return found
    number = decision.crowd()
    advised = crowd(decision, number) if number is not None and number.wanted != number.many else storage(decision)
    if decision.segment.backend == WATCHED:
        return (say(decision, WRAP),)
    if advised is not None:
        return (*found, advised)
    if decision.untried:
        return found
    if decision.needed <= decision.cores:
        return (*found, say(decision, "Make the transforms cheaper, or look at what else runs on the cores."))
    more = Point("cores", "more", "for")
    return (*found, say(decision, "Load on more cores, or make the transforms cheaper.", more))


def _points(of: Sequence[Outlook]) -> list[Point]:
    return [Point("engine", engine.engine, engine.stance) for engine in of]


def _names(of: Sequence[Outlook]) -> str:
    return " and ".join(engine.engine for engine in of)


def _saves(gain: Gain) -> str:
    if gain.by == "switch":
        return f"it saved {percent(gain.measured)} of the step time when it was in use"
    if math.isfinite(gain.measured):
        return f"Diagnose measured {percent(gain.measured)} of the step time saved"
    return f"that should save {100 * gain.low:.0f} to {100 * gain.high:.0f} % of the step time"


def _costs(gain: Gain) -> str:
    """The figures of an engine that is no faster."""
    if gain.by == "switch":
        return f"{_steps(gain.measured)} when it was in use"
    if math.isfinite(gain.measured):
        return f"Diagnose measured {_steps(gain.measured)}"
    low, high = round(-100 * gain.high), round(-100 * gain.low)
    if low > 0:
        return f"steps {low} to {high} % longer are predicted"
    return f"steps between {-low} % shorter and {high} % longer are predicted"


def _steps(saved: float) -> str:
    if abs(saved) < 0.005:
        return "steps as long as now"
    return f"steps {percent(abs(saved))} {'longer' if saved < 0 else 'shorter'}"


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else "less than 1 %"
