"""How many workers on other machines would end the wait, and from how many on they no longer help."""

from __future__ import annotations

import math

from .decision import Decision, rate_without_wait
from .results import Advice, Point

_LIMITS = {
    "driver": "the process that passes the batches on to this kernel",
    "link": "the network link of this machine",
}


def remote_workers(decision: Decision) -> tuple[Advice, ...]:
    """Advice on a segment that waits for batches of other machines; empty elsewhere.

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
