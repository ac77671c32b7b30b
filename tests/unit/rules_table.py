"""Writes `docs/rules.md` from the rules in `kernel_monitor/analysis/rules`.

python -m tests.unit.rules_table
"""

from __future__ import annotations

from pathlib import Path

from kernel_monitor.analysis.rules import RULES

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "rules.md"

HEAD = """# Rules

Written by `python -m tests.unit.rules_table` from `kernel_monitor/analysis/rules`; a test compares.

A rule looks for one fault in a recorded or running session, in each *segment* (a loader between two switches, turned
knobs or marks) or in the session as a whole. It fires, is quiet, or abstains and names the signal that it would need.
A finding has its evidence: values against thresholds, the share of the samples, and when. Only rows in which the loader
was delivering count: no pause of the loop, no change-over of a switch, no warm-up, no profiled step. *More than* and
*below* are strict: a value at its threshold does not fire.

*CPU* is the mean of the cores that this process may use, *the GPUs* are those on which the kernel holds memory (all of
them where the driver does not report it). Every threshold can be set: `analyse(snapshot, thresholds={"dataloader":
{"few": 50}})` in `kernel_monitor.analysis`. Shares are 0 to 1.
"""

ORDER = """## What to do first

When the loop waits for its data, in this order (`feeding` in `kernel_monitor/analysis/advice.py`; it follows the
published comparison of machines with and without CPU machines beside them). What a rule advises on engines, workers,
threads, batches and cores is made from the same decision as this and as the verdict's advice
([verdict.md](verdict.md#the-advice)), whatever the rule's own thresholds are:

1. Is it input-bound at all? If not, faster loading does not speed the loop up.
2. The cores idle: raise the workers (DALI: the threads) up to the cores that there are. If they idle although there are
   as many workers, these wait for storage.
3. The cores are busy: switch to the engine that was measured, or else is predicted, to be faster. Of those that are
   neither known to be faster nor known not to be, *Diagnose* says which.
4. No other engine is faster: more cores, in a machine with more of them for each GPU or in a CPU machine beside it, by
   the engine `ray`. Cores needed = CPU seconds per image × images/s of a loop that never waits: more than that only
   wait for the GPU.
5. More than one machine has (128): CPU machines beside it.

Cost per step is the price per hour / 3600 × seconds per step; per epoch, that of as many samples as a whole epoch of
the loader delivered, at the segment's rate. An epoch that delivered less than its plan gives none.

## Histograms

50 bins of 2 %, 100 % in the last. The distance of two is half the sum of the absolute differences of their shares
(total variation): 0 where they are equal, 1 where they have no bin in common; it is the least share of the samples that
would have to lie elsewhere for them to be equal.
"""


def text() -> str:
    """The document."""
    lines = [HEAD]
    for rule in RULES.values():
        scope = "of each segment" if rule.of_segment is not None else "of the session"
        replayed = ", replayed batches included" if rule.replayed else ""
        lines += [f"## `{rule.id}`: {rule.title}\n", f"{rule.explanation} ({scope[0].upper()}{scope[1:]}{replayed}.)\n"]
        if rule.parameters:
            lines.append("| threshold | default | meaning |\n|---|---|---|")
            lines += [f"| `{name}` | {value.default:g} | {value.meaning} |" for name, value in rule.parameters.items()]
            lines.append("")
        lines.append(f"Source: {rule.source}\n")
    return "\n".join([*lines, ORDER])


if __name__ == "__main__":
    DOCUMENT.write_text(text(), "utf-8")
