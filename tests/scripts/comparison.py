"""What a script delivered, beside what plain torch delivers."""

from __future__ import annotations

import json
from typing import Any

from .cases import AT_ONCE, Case
from .running import Ended

TOLERANCE = 0.02  # of the mean of a quarter of an image, of 1: what DALI's resizing may differ by


def report(ended: Ended) -> tuple[dict[str, Any], list[str]]:
    """What a script printed, and what is wrong with how it ended."""
    wrong: list[str] = []
    err = ended.err
    last = next(reversed(err.splitlines()), "")
    if ended.code != 0:
        wrong.append("did not end in time" if ended.code is None else f"exit code {ended.code}: {last}")
    elif "Traceback" in err or "Error" in err:
        wrong.append(f"complains: {last}")
    if ended.left and ended.code is not None:
        wrong.append("left processes behind")
    printed = ended.out.splitlines()
    begun = printed.count("begins")
    if begun != 1:
        wrong.append(f"ran {begun} times")
    found = [line for line in printed if line.startswith("{")]
    if len(found) != 1:
        wrong.append(f"{len(found)} reports")
        return {}, wrong
    return json.loads(found[0]), wrong


def differences(case: Case, ours: dict[str, Any], plain: dict[str, Any]) -> list[str]:
    """What differs in the reports of a script and of its plain variant, or is wrong with its own counts."""
    wrong: list[str] = []
    for number, (mine, theirs) in enumerate(zip(ours["epochs"], plain["epochs"], strict=True)):
        for name in ("keys", "values", "shape", "type"):
            was, should = [batch[name] for batch in mine], [batch[name] for batch in theirs]
            if was != should:
                wrong.append(f"epoch {number}, {name}: {was} instead of {should}")
        if len(mine) == len(theirs):
            far = _distance(mine, theirs)
            if far > TOLERANCE:
                wrong.append(f"epoch {number}: pixels differ by {far:.3f}")
        count = ours["counts"][number]
        samples = sum(len(batch["keys"]) for batch in theirs)
        whole = {"samples": samples, "planned": samples, "lost": 0, "doubled": 0, "skipped": 0, "finished": True}
        if counted := {name: count.get(name) for name in whole if count.get(name) != whole[name]}:
            wrong.append(f"epoch {number} is counted as {counted}")
    return wrong + _switches(case, ours)


def _distance(mine: list[Any], theirs: list[Any]) -> float:
    pairs = zip(mine, theirs, strict=True)
    return max(
        (
            abs(a - b)
            for batch, other in pairs
            for row, its in zip(batch["coarse"], other["coarse"], strict=False)
            for a, b in zip(row, its, strict=False)
        ),
        default=0.0,
    )


def _switches(case: Case, ours: dict[str, Any]) -> list[str]:
    """What is wrong with the switches themselves: every click is done, and the script ends where it wanted to."""
    wrong: list[str] = []
    if "failed" in ours["status"]:
        wrong.append(f"status: {ours['status']}")
    if any(not reason for reason in ours["grey"]):
        wrong.append("an engine is grey without a reason")
    waited = case.switch not in AT_ONCE
    undone = [click for click in ours["clicks"] if click["outcome"] != "done"]
    if waited and undone:
        wrong.append(f"clicks: {[(click['target'], click['outcome'], click['message']) for click in undone]}")
    if ours["backend"] != "torchvision":
        wrong.append(f"ends on {ours['backend']}")
    switched = [switch["target"] for switch in ours["history"]]
    should = [] if case.switch == "none" or ours["grey"] else ["dali-cpu", "torchvision"]
    if switched != should and (waited or switched):
        wrong.append(f"history: {switched}")
    return wrong
