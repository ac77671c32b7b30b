"""What it would take to feed a loop: cores, and the next thing to do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from . import advice
from .cost import cpu_per_image, rate_without_wait
from .loops import beside, of_segments
from .machine_limits import usable_cores
from .results import Feeding
from .segment_choice import FEWEST_STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..store import Snapshot
    from .decision import Decision
    from .results import Segment


def feeding(
    snapshot: Snapshot, segments: Sequence[Segment], decisions: Mapping[str, Decision], stands: Segment | None
) -> Feeding | None:
    """How many cores this loop would need, of the newest segment that can tell, and the next thing to do.

    A loop that stands beside another (`loops.beside`) tells nothing.

    Cores needed = CPU seconds per image × images/s if the loop never waited. CPU seconds per image: the workers'
    (`process/workers/cpu`) over the samples delivered; where the loop's own thread loads (no workers), its wait is that
    work. What DALI's threads take is not told apart from the kernel's own work.

    Args:
        snapshot: the session.
        segments: of it, in the order of time.
        decisions: by the segments' keys.
        stands: the segment that stands for the session, on which the advice is.

    Returns:
        None without a loader's deliveries; replayed batches are none.
    """
    aside = beside(of_segments(segments))
    real = [one for one in segments if not one.synthetic and one.steps > 0 and one.loader not in aside]
    if not real:
        return None
    enough = [one for one in real if one.steps >= FEWEST_STEPS] or real
    chosen = next((one for one in reversed(enough) if math.isfinite(cpu_per_image(one))), enough[-1])
    each, could = cpu_per_image(chosen), rate_without_wait(chosen)
    decision = None if stands is None else decisions.get(stands.key)
    advised = () if decision is None else advice.feeding(decision)
    return Feeding(chosen.key, each, each * could, usable_cores(snapshot.schema), advised)
