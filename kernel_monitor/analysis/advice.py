"""The decision on one loader, and the sentences of advice that are made from it, each with what it is for or against.

`decide` takes what was measured (*Diagnose*, a switch) before what was predicted, and that before general rules.
`next_step` makes a verdict's advice, `feeding` the next way to feed the loop, `offer` the one switch to be offered. The
verdict, the cost and the rules use the same decision, so that they cannot contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .gains import COMPUTES, SATURATED
from .results import Advice, Gain, Kind, Point, Segment, Stance, Verdict, faster
from .segments import WATCHED

# ---- The decision on one loader: what speaks for and against each change of it.

CLEAR = 0.02
"""An engine is faster where at least this share of the step time is saved with all of the interval, and not faster
where less is."""
IDLE, FULL = 80.0, 90.0
"""%, median load: below `IDLE` more workers find idle cores, above `FULL` more workers than cores are too many."""
_MANY = 2.0  # workers or threads per core: more get in each other's way
WAITS = 0.2  # share of the step: larger batches are not advised to a loop that waits for more

Reason = Literal["idle", "full", "many", "busy", "not waiting", "no core left", "undetermined", "unknown"]


@dataclass(frozen=True)
class Outlook:
    """The expected effect of another engine; `gain` is None where nothing is known."""

    engine: str
    stance: Stance
    gain: Gain | None


@dataclass(frozen=True)
class WorkerCount:
    """The number of processes or threads that load, and that should load."""

    knob: str  # `workers` or `threads`
    current: int
    wanted: int  # equal to `current` where that should stay
    reason: Reason


@dataclass(frozen=True)
class Decision:
    """The decision on the loader of one segment."""

    segment: Segment  # what it is made from
    kind: Kind = "undetermined"  # what its step is bound by
    wait: float = math.nan  # share of its step that waits for data; NaN: not known
    cores: float = 0.0  # that this process may use; 0: not known
    load: float = math.nan  # %, median of what was taken of them; NaN: not measured
    needed: float = math.nan  # cores that would feed the loop; NaN: not known
    engines: tuple[Outlook, ...] = ()  # the others that can run here
    withheld: str | None = None  # why nothing is advised on this segment, as a sentence; None where something is
    # images/s that reach this machine from others at most, and what limits them (`driver` or `link`); NaN: not known
    reach: float = math.nan
    limited_by: str = ""

    @property
    def best(self) -> Outlook | None:
        """The engine to switch to: of those surely faster the one that saves most, measured before predicted."""
        faster = [
            (math.isfinite(outlook.gain.measured), outlook.gain.low, place, outlook)
            for place, outlook in enumerate(self.engines)
            if outlook.stance == "for" and outlook.gain is not None
        ]
        return max(faster)[-1] if faster else None

    @property
    def untried(self) -> bool:
        """Return whether nothing is known of at least one of the other engines."""
        return any(outlook.stance == "neutral" and outlook.gain is None for outlook in self.engines)

    @property
    def waits(self) -> bool:
        """Return whether faster loading may help."""
        return self.kind in ("input-bound", "undetermined")

    def worker_count(self, many: float | None = None) -> WorkerCount | None:
        """Return whether more or fewer processes should load.

        None where neither the segment nor `many` says how many do.
        """
        word = self.segment.worker_knob
        known = many if self.segment.backend == WATCHED else self.segment.knobs.get(word, many)
        if self.segment.synthetic or known is None or not self.cores > 0 or self.segment.nodes:
            return None  # what loads on other machines has their cores
        return WorkerCount(word, int(known), *self._wanted(int(known), math.floor(self.cores)))

    def _wanted(self, many: int, whole: int) -> tuple[int, Reason]:
        if many > self.cores and self.load > FULL:
            return max(1, whole - 1), "full"
        if many > max(1.0, _MANY * self.cores):
            return max(1, whole), "many"
        if not self.waits:
            return many, "not waiting"
        if many >= whole:
            return many, "no core left"
        if self.load >= IDLE:
            return many, "busy"
        if self.kind == "undetermined":
            return many, "undetermined"
        return (whole, "idle") if self.load < IDLE else (many, "unknown")


def decide(
    segment: Segment, verdict: Verdict, state: Mapping[str, Any], cores: float, withheld: str | None = None
) -> Decision:
    """Return the decision on a segment from its verdict with its gains.

    `state` is its loader's (empty where it is not known), `cores` those that this process may use, `withheld` why
    nothing is to be advised, as a sentence.
    """
    gains = {gain.action: gain for gain in verdict.gains}
    # What a person must agree to first is no advice: batches that are replayed, a Ray on this machine.
    able = [one for one in state.get("backends") or () if one.get("available") and one.get("confirm") is None]
    others = [name for name in (str(one.get("name")) for one in able) if name not in (segment.backend, "synthetic")]
    limits = {name: value for name, value in (state.get("remote") or {}).items() if isinstance(value, float)}
    limited_by = min(limits, key=limits.__getitem__, default="")
    return Decision(
        segment=segment,
        kind=verdict.kind,
        wait=verdict.shares.get("wait", segment.wait / segment.step if segment.step > 0 else math.nan),
        cores=cores,
        load=segment.load if math.isfinite(segment.load) else segment.median("cpu"),
        needed=cpu_per_image(segment) * rate_without_wait(segment),
        engines=tuple(Outlook(name, _stance(gains.get(name), verdict.kind), gains.get(name)) for name in others),
        withheld=withheld,
        reach=limits.get(limited_by, math.nan),
        limited_by=limited_by,
    )


def _stance(gain: Gain | None, kind: Kind) -> Stance:
    if gain is None:
        return "against" if kind == "compute-bound" else "neutral"
    if gain.low >= CLEAR:
        return "for"
    return "against" if gain.high < CLEAR else "neutral"


def cpu_per_image(segment: Segment) -> float:
    """Return the CPU seconds that loading one image took; NaN where they cannot be separated from the rest.

    They are the workers' (`process/workers/cpu`) over the samples delivered; where the loop's own thread loads (no
    workers), its wait is that work. What threads of this process take is not told apart from the kernel's own work,
    and what other machines take for `ray` is not measured.
    """
    if segment.samples == 0 or segment.in_threads or segment.backend == "ray" or segment.synthetic:
        return math.nan
    if segment.knobs.get("workers") == 0:
        return segment.wait / 1e3 * segment.batches / segment.samples
    return segment.workers_cpu_seconds / segment.samples


def rate_without_wait(segment: Segment) -> float:
    """Return the images/s of a loop that never waits for a batch; NaN where a step is nothing but waiting."""
    each = segment.samples / segment.batches if segment.batches else math.nan
    busy = segment.step - segment.wait
    if segment.on_device:  # the GPU's own time passes in the loop's waits, too
        busy = max(busy, sum(time for phase, time in segment.phases.items() if phase != "other"))
    return 1e3 * each / busy if busy > 0 else math.nan


# ---- The sentences, made from a decision.

# ---- The number of workers on other machines that would end the wait, and beyond which they no longer help.

_LIMITS = {
    "driver": "the process that passes the batches on to this kernel",
    "link": "the network link of this machine",
}


def _remote_workers(decision: Decision) -> tuple[Advice, ...]:
    """Return advice on a segment that waits for batches of other machines; empty elsewhere.

    While the loop waits, every worker is busy, and w of them deliver r images/s. A loop that takes m images/s therefore
    needs w * m / r of them; more than w * l / r no longer help where at most l images/s reach this machine.
    """
    segment = decision.segment
    workers, most = segment.knobs.get("workers", 0), rate_without_wait(segment)
    if not segment.nodes or decision.kind != "input-bound" or not workers:
        return ()
    if not (segment.rate > 0 and math.isfinite(most)):
        return ()
    limited = decision.reach < most
    needed = math.ceil(workers * most / segment.rate - 1e-9)
    useful = math.floor(workers * decision.reach / segment.rate) if limited else needed
    limit = f"{_LIMITS.get(decision.limited_by, 'the way there')}, which takes {decision.reach:,.0f} images/s at most"
    rates = f"the loop could take {most:,.0f} images/s, and {workers:,} deliver {segment.rate:,.0f}"
    if useful <= workers:
        text = f"More workers would not help: they wait for {limit}. Send fewer bytes, such as uint8 instead of float."
        return (Advice(text, (Point("workers", "more", "against"),), segment.key),)
    beyond = f"More than that would wait for {limit}." if limited else "More than that would only wait for the GPU."
    text = f"Raise the workers from {workers:,} to {useful:,}, with a core of a CPU machine for each: {rates}. {beyond}"
    return (Advice(text, (Point("workers", "more", "for"),), segment.key),)


MOST_CORES = 128  # of one machine: two sockets of 64 cores. Where more are needed, machines beside it are.
WRAP = "Wrap the DataLoader with switchable(loader): its workers can then be raised, and DALI tried, in the run."
_WORTH = 0.05  # share of the step time: for less nobody is asked to switch
_WAYS: dict[Reason, tuple[str, Stance]] = {
    "idle": ("more", "for"),
    "full": ("fewer", "for"),
    "many": ("fewer", "for"),
    "undetermined": ("more", "neutral"),
    "unknown": ("more", "neutral"),
}
"""By the reason, what the advice on the number of workers or threads is for; any other is against more of them."""


def advise(decision: Decision, text: str, *points: Point) -> Advice:
    """Return advice for the decision's segment, from a sentence and what it is for or against."""
    return Advice(text, points, decision.segment.key)


def engines(decision: Decision) -> tuple[Advice, ...]:
    """Return advice on the other engines: which one to take, which are no faster, which to measure."""
    if decision.withheld is not None or not decision.engines:
        return ()
    best, segment = decision.best, decision.segment
    if best is not None and best.gain is not None:
        return (
            advise(decision, f"Switch to {best.engine}: {_speed_words(decision, best.gain, 'it')}.", *_points([best])),
        )
    found = [
        advise(
            decision,
            f"Keep {decision.segment.backend}: {_speed_words(decision, engine.gain, engine.engine)}.",
            *_points([engine]),
        )
        for engine in decision.engines
        if engine.stance == "against" and engine.gain is not None
    ]
    rest = [engine for engine in decision.engines if engine.stance == "neutral"]
    near = [engine for engine in rest if engine.gain is not None and math.isfinite(engine.gain.measured)]
    alike = [engine for engine in near if engine.gain is not None and abs(engine.gain.measured) < CLEAR]
    if alike:
        names = _names(alike)
        by_diagnose = all(engine.gain is not None and engine.gain.by == "Diagnose" for engine in alike)
        measured = "Diagnose" if by_diagnose else "A switch"
        words = f"{measured} found {names} about as fast as {segment.backend}."
        found.append(advise(decision, words, *_points(alike)))
    found += [
        advise(decision, _unsure_words(decision, engine.gain, engine.engine), *_points([engine]))
        for engine in near
        if engine.gain is not None and engine not in alike
    ]
    unknown = [engine for engine in rest if engine not in near]
    if unknown and decision.waits:
        found.append(advise(decision, f"Press Diagnose to measure {_names(unknown)} in this loop.", *_points(unknown)))
    return tuple(found)


def worker_advice(decision: Decision, found: WorkerCount | None) -> tuple[Advice, ...]:
    """Return advice on the number of workers or threads; empty where it is not known, or was changed since."""
    if found is None or decision.withheld is not None:
        return ()
    word, many, wanted = found.knob, found.current, found.wanted
    busy = f"(median {decision.load:.0f} % busy)"
    those = f"{many} {word.removesuffix('s') if many == 1 else word}"
    texts: dict[Reason, str] = {
        "idle": f"Raise the {word} from {many} to {wanted}: the cores idle {busy} while the loop waits.",
        "full": (
            f"Lower the {word} from {many} to {wanted} and compare: the cores are full, and the loop's own thread, "
            "which feeds the GPU, has to share them."
        ),
        "many": f"Lower the {word} from {many} to {wanted}: more than the cores can run slow each other down.",
        "busy": f"More {word} than {many} would not help: the cores are busy {busy}.",
        "not waiting": f"More {word} would not speed this loop up: it is {decision.kind}.",
        "no core left": f"More {word} would not help: {those} for {decision.cores:g} cores.",
        "undetermined": (
            f"It is not clear yet whether the loop waits for its data; if it does, raise the {word} from {many}."
        ),
        "unknown": f"Raise the {word} from {many} if cores are idle: how busy they are was not measured.",
    }
    return (advise(decision, texts[found.reason], Point(word, *_WAYS.get(found.reason, ("more", "against")))),)


def more_workers(decision: Decision) -> tuple[Advice, ...]:
    """Return advice to raise the workers or threads, where cores idle while the loop waits; empty elsewhere."""
    found = decision.worker_count()
    return worker_advice(decision, found) if found is not None and found.reason == "idle" else ()


def storage(decision: Decision) -> tuple[Advice, ...]:
    """Return advice on the storage, where as many workers as there are cores leave these idle; empty elsewhere."""
    found = decision.worker_count()
    if found is None or decision.segment.backend != "torchvision":
        return ()
    if found.reason != "no core left" or not decision.load < IDLE:
        return ()
    text = (
        f"{found.current} workers leave the cores idle (median {decision.load:.0f} % busy): they wait for something "
        "else than the CPU, most likely the storage. See the rules on I/O before adding cores."
    )
    return (advise(decision, text, Point("storage", "faster", "for"), Point("workers", "more", "against")),)


def cores(decision: Decision) -> Advice:
    """Return advice on the number of cores that would feed the loop."""
    key, needed = decision.segment.key, decision.needed
    more = Point("cores", "more", "for")
    if not math.isfinite(needed):
        text = f"Take a machine with more CPU cores for each GPU; how many it takes is not known from {key}."
        return advise(decision, text, more)
    text = (
        f"It takes about {math.ceil(needed - 1e-9):,} cores to feed this loop; this process may use {decision.cores:g}."
    )
    if needed <= decision.cores:
        text += " These should be enough: check what else runs on them."
        return advise(decision, text, Point("cores", "more", "against"))
    lacking = math.ceil(needed - decision.cores - 1e-9)
    text += f" {lacking:,} more core{' would' if lacking == 1 else 's would'} end the wait:"
    if needed <= MOST_CORES:
        beside = "a machine with more of them for each GPU, or a CPU machine beside this one, by the engine ray"
    else:
        beside = "no one machine has so many, so CPU machines beside this one, by the engine ray"
    return advise(decision, f"{text} {beside}. More than that would only wait for the GPU.", more)


def next_step(decision: Decision, missing: Sequence[str] = ()) -> tuple[Advice, ...]:
    """Return the advice of a verdict on what to do next; measuring what is `missing` would let it say more."""
    segment = decision.segment
    if decision.withheld is not None:
        return (withheld_advice(decision),)
    if segment.synthetic:
        text = "Switch back to a real engine: as far as it stays below this rate, faster loading would help."
        return (advise(decision, text, Point("engine", "synthetic", "against")),)
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
            return (advise(decision, f"Loading is fast enough. {text}", nothing, *_points(slow)),)
    elif decision.kind == "residual-heavy":
        text = (
            "Profile 10 steps to see what takes the time: often logging, metrics, .item() or another synchronisation."
        )
    else:
        text = f"To say more: {'; '.join(missing)}." if missing else "Let the loop run on."
    return (*switch, advise(decision, text))


def feeding(decision: Decision) -> tuple[Advice, ...]:
    """Return the next thing to do to feed the loop, in the order of `docs/rules.md`; empty if it was changed since."""
    if decision.withheld is not None or decision.segment.synthetic:
        return ()
    if decision.kind == "undetermined":
        best = engines(decision) if decision.best is not None else ()
        untried = [engine for engine in decision.engines if engine.gain is None]
        press = ", or press Diagnose" if untried else ""
        text = f"It is not clear yet whether the loop waits for its data: let it run on{press}."
        return (*best, advise(decision, text, *_points(untried)))
    if decision.kind != "input-bound":
        share = percent(decision.wait) if math.isfinite(decision.wait) else "little"
        text = f"More cores would not speed this loop up: {share} of the step is waiting for data."
        return (advise(decision, text, Point("cores", "more", "against")),)
    found = more_workers(decision) or storage(decision) or _remote_workers(decision)
    if found:
        return found
    if decision.segment.backend == WATCHED:
        return (advise(decision, WRAP),)
    found = engines(decision)
    return found if decision.best is not None or decision.untried else (*found, cores(decision))


@dataclass(frozen=True)
class Offer:
    """The one switch that may be offered to a loop that waits; `kernel_monitor.runtime` decides when it is offered."""

    engine: str  # to which
    advised: tuple[Advice, ...]  # the sentence. `advice` of its JSON is the same as prose
    gain: Gain | None  # what to expect; None where nothing is known of that


def offer(decision: Decision, state: Mapping[str, Any]) -> Offer | None:
    """Return the switch that may be offered on a segment; None where none is likely to help.

    The engine that is surely faster; else the one of those predicted to be that should save most; else one of which
    nothing is known and that takes the whole of the loading over, unless the loop waits for its storage, or the engine
    is being run on some of the files to predict its gain. `state` is its loader's.
    """
    segment = decision.segment
    if decision.kind != "input-bound" or decision.withheld is not None or segment.synthetic:
        return None
    backends = {str(one.get("name")): one for one in state.get("backends") or ()}
    engines = [one for one in decision.engines if backends[one.engine].get("confirm") is None]
    best = decision.best
    if best is not None:
        return _ready(decision, best) if best in engines and _expected_gain(best) >= _WORTH else None
    if segment.backend != "torchvision" or storage(decision) or _waits_for_files(decision):
        return None
    open_ones = [one for one in engines if one.stance == "neutral" and not backends[one.engine].get("note")]
    predicted = [one for one in open_ones if one.gain is not None and not math.isfinite(one.gain.measured)]
    likely = max(predicted, key=_expected_gain, default=None)
    if likely is not None and _expected_gain(likely) >= _WORTH:
        return _ready(decision, likely)
    if any(one.get("state") == "running" for one in (state.get("calibration") or {}).values()):
        return None  # it is soon known what that engine would bring
    # Where there is DALI, what is known of it says more than a guess about threads, which do the same work.
    with_dali = any(name.startswith("dali-") and one.get("available") for name, one in backends.items())
    untried = [one for one in open_ones if one.gain is None and not (with_dali and one.engine == "threads")]
    # As `dali` stands for it: on the GPU where there is one.
    first = min(untried, key=lambda one: one.engine != "dali-gpu", default=None)
    return None if first is None else _ready(decision, first)


def _ready(decision: Decision, engine: Outlook) -> Offer:
    head, gain = f"{engine.engine} is ready", engine.gain
    if gain is None:
        text = f"{head}. It is not measured in this loop yet: try it, the way back is one click."
    elif math.isfinite(gain.measured) or gain.low >= 0:
        text = f"{head}: {_speed_words(decision, gain, 'it')}."
    else:
        text = f"{head}: {_speed_words(decision, gain, 'it')}. Try it: the way back is one click."
    return Offer(engine.engine, (advise(decision, text, *_points([engine])),), gain)


def _expected_gain(one: Outlook) -> float:
    """Return the expected gain, as a share of the step time."""
    gain = one.gain
    if gain is None:
        return -math.inf
    return gain.measured if math.isfinite(gain.measured) else (gain.low + gain.high) / 2


def _waits_for_files(decision: Decision) -> bool:
    """Return whether what loads has little to compute, though the cores would let it: then it waits for the storage."""
    segment = decision.segment
    workers = segment.knobs.get("workers", 0)
    # Without workers the loop's own thread loads, while it waits.
    loading = segment.workers_cpu_seconds / workers if workers else segment.cpu_seconds
    could = segment.seconds * (1.0 if workers else segment.wait / segment.step)
    return loading < COMPUTES * could and not decision.load >= 100 * SATURATED


def withheld_advice(decision: Decision) -> Advice:
    """Return the reason why nothing is advised on a segment, as advice."""
    return advise(decision, decision.withheld or "Let the loop run on.")


def _relief(decision: Decision, found: tuple[Advice, ...]) -> tuple[Advice, ...]:
    """Return the advice for a loop that waits for its data, after the advice on engines that was `found`."""
    if decision.best is not None:
        return found
    if decision.segment.backend == WATCHED:
        return (advise(decision, WRAP),)
    number = decision.worker_count()
    advised = (
        worker_advice(decision, number) if number is not None and number.wanted != number.current else storage(decision)
    )
    advised = advised or _remote_workers(decision)
    if advised:
        return (*found, *advised)
    if decision.untried:
        return found
    if decision.needed <= decision.cores:
        return (*found, advise(decision, "Make the transforms cheaper, or check what else runs on the cores."))
    more = Point("cores", "more", "for")
    return (*found, advise(decision, "Load on more cores, or make the transforms cheaper.", more))


def _points(of: Sequence[Outlook]) -> list[Point]:
    return [Point("engine", engine.engine, engine.stance) for engine in of]


def _names(of: Sequence[Outlook]) -> str:
    return " and ".join(engine.engine for engine in of)


def _speed_words(decision: Decision, gain: Gain, who: str) -> str:
    """Return how fast another engine (`who`) is beside the one in use, and the source of that."""
    than = f"than {decision.segment.backend}"
    if not math.isfinite(gain.measured):
        return f"{who} is expected to run {_than(faster(gain.low, gain.high), than)}"
    words = _than("about as fast" if abs(gain.measured) < CLEAR else faster(gain.measured), than)
    return f"{who} ran {words} in this loop" if gain.by == "switch" else f"Diagnose measured {who} {words}"


def _unsure_words(decision: Decision, gain: Gain, who: str) -> str:
    """Return a sentence on an engine (`who`) that was measured, but of which it is not sure that it is faster."""
    words = _speed_words(decision, gain, who)
    if not gain.low < 0 < gain.high:
        return f"{words}."
    return f"{words}, but the steps vary too much to be sure{': press Diagnose' * (gain.by == 'switch')}."


def _than(words: str, than: str) -> str:
    return f"{words} {than.replace('than', 'as', 1) if words.endswith('fast') else than}"


def percent(share: float) -> str:
    """Format a share in words: `82 %`, `less than 1 %`."""
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else "less than 1 %"
