"""What a run costs at a price per hour, and what it would take to feed it.

Cost per step = price per hour / 3600 × seconds per step, as in the published comparison of machines with and without
CPU machines beside them; whoever saves step time saves the same share of the cost, at the same price.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from .limits import usable_cores
from .loops import beside, of_stretches
from .model import Cost, Feeding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..store import Snapshot
    from .model import EpochCount, Stretch, Verdict

FEWEST_STEPS = 20
"""A stretch of fewer is not reckoned from while there is a longer one."""
IDLE_CPU = 80.0
"""%: while the cores' median is below it, more workers find idle cores."""
WATCHED = "loader"
"""The backend of what is watched and cannot be switched."""
MOST_CORES = 128
"""Of one machine: two sockets of 64 cores. Where more are needed, machines beside it are."""


def cost_per_step(per_hour: float, step_s: float) -> float:
    """What a step of `step_s` seconds costs, in whole units of the price's currency; NaN for NaN.

    Raises:
        MonitorError: the price is negative or no number.
    """
    if not (math.isfinite(per_hour) and per_hour >= 0):
        raise MonitorError(f"A price per hour is 0 or more, not {per_hour}.")
    return per_hour / 3600.0 * step_s


def costs(
    stretches: Sequence[Stretch], epochs: Sequence[EpochCount], per_hour: float, currency: str
) -> tuple[Cost, ...]:
    """What each stretch cost per step, per epoch and per 1,000 images.

    Per epoch: the samples of an epoch of its loader that delivered its plan (the newest such one), at the stretch's
    rate. Where no epoch did, it is NaN.

    Raises:
        MonitorError: the price is negative or no number.
    """
    whole = {one.loader: one.samples for one in epochs if one.finished and one.problem is None and one.samples}
    found = []
    for one in stretches:
        a_sample = cost_per_step(per_hour, 1.0 / one.rate if one.rate > 0 else math.nan)
        found.append(
            Cost(
                stretch=one.key,
                per_hour=per_hour,
                currency=currency,
                per_step=cost_per_step(per_hour, one.step / 1e3),
                per_epoch=a_sample * whole.get(one.loader, math.nan),
                per_thousand=1000 * a_sample,
            )
        )
    return tuple(found)


def feeding(snapshot: Snapshot, stretches: Sequence[Stretch], verdicts: Sequence[Verdict]) -> Feeding | None:
    """How many cores this loop would need, of the newest stretch that can tell, and the next thing to do in the newest.

    A loop that stands beside another (`loops.beside`) tells nothing.

    Cores needed = CPU seconds per image × images/s if the loop never waited. CPU seconds per image: the workers'
    (`process/workers/cpu`) over the samples delivered; where the loop's own thread loads (no workers), its wait is that
    work. What DALI's threads take is not told apart from the kernel's own work.

    Returns:
        None without a loader's deliveries; replayed batches are none.
    """
    aside = beside(of_stretches(stretches))
    real = [one for one in stretches if not one.synthetic and one.steps > 0 and one.loader not in aside]
    if not real:
        return None
    enough = [one for one in real if one.steps >= FEWEST_STEPS] or real
    newest = enough[-1]
    chosen = next((one for one in reversed(enough) if math.isfinite(cpu_per_image(one))), newest)
    each, could = cpu_per_image(chosen), _without_wait(chosen)
    cores = usable_cores(snapshot.schema)
    needed = each * could
    verdict = next((one for one in verdicts if one.stretch == newest.key), None)
    state = next((one for one in snapshot.loaders if str(one["id"]) == newest.loader), {})
    advice = _advice(newest, verdict, state, needed if chosen is newest else math.nan, cores)
    return Feeding(chosen.key, each, needed, cores, advice)


def cpu_per_image(stretch: Stretch) -> float:
    """CPU seconds that loading one image took; NaN where they cannot be told from the rest."""
    if stretch.samples == 0 or stretch.backend.startswith("dali") or stretch.synthetic:
        return math.nan
    if stretch.knobs.get("workers") == 0:
        return stretch.wait / 1e3 * stretch.batches / stretch.samples
    return stretch.workers_cpu_seconds / stretch.samples


def _without_wait(stretch: Stretch) -> float:
    """Images per second if there were always a batch; NaN where a step is nothing but waiting."""
    each = stretch.samples / stretch.batches if stretch.batches else math.nan
    busy = stretch.step - stretch.wait
    if stretch.on_device:  # the GPU's own time passes in the loop's waits, too
        busy = max(busy, sum(time for phase, time in stretch.phases.items() if phase != "other"))
    return 1e3 * each / busy if busy > 0 else math.nan


def _advice(stretch: Stretch, verdict: Verdict | None, state: Mapping[str, Any], needed: float, cores: float) -> str:
    share = stretch.wait / stretch.step if stretch.step else math.nan
    if verdict is None or verdict.kind == "undetermined":
        return "Whether the loop waits for its data is not settled: let it run on, or press Diagnose."
    if verdict.kind != "input-bound":
        return f"Nothing: the loop waits {100 * share:.0f} % of its step, so more cores would bring next to nothing."
    cpu = next((one.values.p50 for one in stretch.statistics if one.metric == "cpu"), math.nan)
    workers = stretch.knobs.get("workers")
    if stretch.backend == "torchvision" and cpu < IDLE_CPU:
        if workers is not None and workers < math.floor(cores):
            return (
                f"Raise the workers from {workers} to {math.floor(cores)}: the cores idle (median {cpu:.0f} % busy) "
                "while the loop waits."
            )
        if workers is not None:
            return (
                f"{workers} workers leave the cores idle (median {cpu:.0f} % busy): they wait for something else than "
                "the CPU, most likely the storage. See the rules on I/O before adding cores."
            )
    threads = stretch.knobs.get("threads")
    if stretch.backend.startswith("dali") and cpu < IDLE_CPU and threads is not None and threads < math.floor(cores):
        return (
            f"Raise the threads from {threads} to {math.floor(cores)}: the cores idle (median {cpu:.0f} % busy) while "
            "the loop waits."
        )
    if stretch.backend == WATCHED:
        return (
            "Wrap the DataLoader with switchable(loader): its workers can then be raised, and DALI tried, in the run."
        )
    there = {one["name"] for one in state.get("backends", ()) if one.get("available")}
    for target, words in (("dali-gpu", "decodes and augments on the GPU"), ("dali-cpu", "needs less CPU per image")):
        if target in there and not stretch.backend.startswith("dali"):
            return f"Switch to {target}: the cores are busy (median {cpu:.0f} %), and it {words}."
    if not math.isfinite(needed):
        return f"A machine with more CPU cores for each GPU; how many cannot be told from {stretch.key}."
    more = f"About {math.ceil(needed - 1e-9):,} cores feed this loop; this process may use {cores:g}."
    if needed <= cores:
        return f"{more} They are enough by this reckoning: look at what else runs on them."
    if needed <= MOST_CORES:
        return f"{more} Take a machine with more cores for each GPU, or put CPU machines beside this one."
    return f"{more} No one machine has so many: put CPU machines beside this one."
