"""What the documents promise of a GPU, and the figure of a run that decides each promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Figures = dict[str, Any]
Decision = tuple[bool, str]  # whether the promise was kept, and by which figure
LARGEST_OF_255 = 1.0
"""What DALI's own tests allow between the JPEG decoders of CPU and GPU; 0.17 to 0.40 on an H200."""
USUAL = ("train", "evaluation", "colours")  # the chains that are made of those of that page


@dataclass(frozen=True)
class Promise:
    """One promise.

    Attributes:
        page: where it stands.
        words: on that page, literally.
        part: whose figures decide.
        decide: gives whether it was kept and the figure; None where the part's figures do not tell.
    """

    page: str
    words: str
    part: str
    decide: Callable[[Figures], Decision | None]


def tests(*names: str) -> Callable[[Figures], Decision | None]:
    """Kept where the tests of these names passed, in every variant; undecided where one was not run."""

    def decide(figures: Figures) -> Decision | None:
        found = {name: [] for name in names}  # type: dict[str, list[str]]
        for test, outcome in figures["tests"].items():
            name = test.rsplit("::", 1)[-1].split("[")[0]
            if name in found:
                found[name].append(outcome)
        outcomes = [outcome for one in found.values() for outcome in one]
        if "failed" in outcomes:
            return False, f"failed: {', '.join(name for name, of in found.items() if 'failed' in of)}"
        if not all(found.values()) or "skipped" in outcomes:
            return None
        return True, f"{len(outcomes)} of {len(outcomes)} tests passed"

    return decide


def bars(*words: str) -> Callable[[Figures], Decision | None]:
    """Kept where every bar whose name has all these words is met; the figure is the one nearest to its limit."""

    def decide(figures: Figures) -> Decision | None:
        found = [bar for bar in figures["bars"] if all(word in bar["name"] for word in words)]
        if not found:
            return None
        worst = max(found, key=lambda bar: excess(bar["value"], bar["limit"], at_most=bar["at_most"]))
        kept = excess(worst["value"], worst["limit"], at_most=worst["at_most"]) <= 1
        direction = "at most" if worst["at_most"] else "at least"
        return kept, f"{worst['name']}: {worst['value']:.3g}{worst['unit']} ({direction} {worst['limit']:g})"

    return decide


def excess(value: float, limit: float, *, at_most: bool) -> float:
    """How far a figure is towards its limit and beyond: above 1 it is missed."""
    if at_most:
        return value / limit
    return limit / value if value > 0 else float("inf")


def parameters(figures: Figures) -> Decision:
    equal = bool(figures["equal"])
    return equal, f"crops, flips, angles and factors {'equal' if equal else 'differ'}"


def pixels(figures: Figures) -> Decision:
    usual = {case: mean for case, mean in figures["means"].items() if case.split(",")[0] in USUAL}
    case = max(usual, key=lambda case: float(usual[case]))
    return usual[case] <= LARGEST_OF_255, f"{case}: {usual[case]:.3f} of 255 (at most {LARGEST_OF_255})"


PROMISES = (
    Promise(
        "docs/one-plan.md", "the same samples, in the same order, each once", "tests",
        tests("test_batches_come_on_the_gpu_each_sample_once"),
    ),
    Promise("docs/one-plan.md", "the same numbers on every engine", "parity", parameters),
    Promise("docs/one-plan.md", "on a GPU, with its own JPEG decoder, within 1 of 255", "parity", pixels),
    Promise(
        "docs/transforms.md", "What DALI can do as torchvision does it is done in DALI", "parity",
        bars("mean difference"),
    ),
    Promise("docs/howto/switch.md", "so the loop never waits for the switch", "swap", bars("dali-gpu", "stall p95")),
    Promise(
        "docs/benchmarks.md", "*click* is from the request to the first batch of the other engine", "swap",
        bars("dali-gpu", "click p95"),
    ),
    Promise("docs/benchmarks.md", "growth from 10 to 200 swaps", "swap", bars("growth from")),
    Promise("docs/benchmarks.md", "switchable: torchvision / DataLoader", "loaders", bars("switchable: torchvision")),
    Promise(
        "docs/benchmarks.md", "how close the pixels of the two engines are", "parity-cpu", bars("mean difference"),
    ),
    Promise("docs/howto/gpu-proof.md", "at least 0.45 of the images/s of DALI by hand", "loaders",
            bars("dali-gpu", "by hand")),
    Promise("docs/howto/gpu-proof.md", "faster than the plain `DataLoader`", "loaders", bars("dali-gpu / DataLoader")),
    Promise("docs/howto/sweep.md", "the samples that the loader's own counters say were delivered", "sweep",
            bars("delivered or replayed")),
    Promise("docs/howto/gpu-proof.md", "at least 72.6 % of ResNet18's time at load 12", "sweep",
            bars("resnet18 at load 12")),
    Promise("docs/howto/gpu-proof.md", "at least 0.97 of the synthetic ceiling", "case-study", bars("synthetic")),
    Promise("docs/howto/gpu-proof.md", "what `nvidia-smi` shows", "rows", bars("of what is allowed")),
    Promise("docs/gpu-metrics.md", "no query delays a frame", "rows", bars("error of the interval")),
    Promise(
        "docs/gpu-metrics.md", "the hello's `gpus[i].reasons` has NVML's reason for each", "tests",
        tests("test_one_row_for_each_metric", "test_every_gpu_has_its_rows"),
    ),
    Promise(
        "docs/steps.md", "nothing ever waits for the device", "tests",
        tests("test_nothing_of_ours_synchronises", "test_a_loop_that_runs_ahead_of_the_device_is_not_waited_for"),
    ),
    Promise(
        "docs/steps.md", "in the **device's own time**", "tests",
        tests("test_phases_are_what_the_device_took", "test_a_slow_loader_lets_the_device_wait"),
    ),
)  # fmt: skip


def judge(figures: Mapping[str, Figures]) -> list[tuple[Promise, Decision | None]]:
    """Every promise with what the figures of the parts that were run say of it; None where they say nothing."""
    return [
        (promise, promise.decide(figures[promise.part]) if promise.part in figures else None) for promise in PROMISES
    ]
