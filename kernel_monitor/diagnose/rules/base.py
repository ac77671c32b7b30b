"""What a rule is, and what it is given and gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..decision import Decision
from ..model import Advice, Evidence, Finding, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from ...store import Snapshot
    from ..frames import Frames, Places, Steps
    from ..model import Stretch

NO_DELIVERY = "deliveries: no loader of this kernel delivered a batch"


@dataclass(frozen=True)
class Session:
    """What the rules look at.

    Attributes:
        frames: the session's rows and steps.
        stretches: of all loaders, in the order of time.
        others: the sessions of the other ranks of the same training.
        decisions: by the stretches' keys, what their advice is made from.
    """

    frames: Frames
    stretches: Sequence[Stretch]
    others: Sequence[Snapshot] = ()
    decisions: Mapping[str, Decision] = field(default_factory=dict)

    def decision(self, stretch: Stretch) -> Decision:
        """What is decided of the stretch's loader."""
        return self.decisions.get(stretch.key) or Decision(stretch)

    def rows(self, stretch: Stretch) -> Places:
        """The rows in which the stretch's loader was delivering."""
        return self.frames.of(stretch.loader, stretch.start, stretch.end)

    def steps(self, stretch: Stretch) -> Steps:
        """The stretch's steps, those left out of its figures included."""
        return self.frames.steps(stretch.loader, stretch.start, stretch.end)

    def no_gpu(self) -> str | None:
        """Why nothing is known of GPUs, as a missing signal; None where something is."""
        if self.frames.gpus and bool(np.isfinite(self.frames.gpu).any()):
            return None
        return f"GPU utilisation: {self.frames.snapshot.schema.gpu_reason or 'no value was measured'}"


@dataclass(frozen=True)
class Parameter:
    """A threshold: its default, and what it means."""

    default: float
    meaning: str


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        id, title: its name, and what people read.
        parameters: the thresholds.
        explanation: when it fires, and what it abstains from.
        source: whence it comes, and what was mended.
        of_stretch: asked of every stretch; None: `of_session` is asked.
        of_session: asked once.
        replayed: it is asked of stretches of replayed batches, too.
    """

    id: str
    title: str
    parameters: Mapping[str, Parameter]
    explanation: str
    source: str
    of_stretch: Callable[[Session, Asked, Stretch], Finding] | None = None
    of_session: Callable[[Session, Asked], Finding] | None = None
    replayed: bool = False

    @property
    def defaults(self) -> dict[str, float]:
        """The thresholds' defaults."""
        return {name: one.default for name, one in self.parameters.items()}


@dataclass(frozen=True)
class Asked:
    """A rule with the thresholds that it is asked with."""

    rule: Rule
    thresholds: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.thresholds[name]

    def fired(
        self,
        advised: Sequence[Advice],
        *evidence: Evidence,
        stretch: Stretch | None = None,
        samples: int = 0,
        times: int = 1,
        severity: Literal["warning", "critical"] = "warning",
    ) -> Finding:
        """It is so; `advised` says what to do."""
        made = self._finding("fired", stretch, samples=samples, times=times, evidence=evidence, advised=tuple(advised))
        return Finding(**{**vars(made), "severity": severity})

    def quiet(self, *evidence: Evidence, stretch: Stretch | None = None, samples: int = 0) -> Finding:
        """It is not so."""
        return self._finding("quiet", stretch, samples=samples, evidence=evidence)

    def abstained(self, *missing: str, stretch: Stretch | None = None, samples: int = 0) -> Finding:
        """It cannot be said without what is missing."""
        return self._finding("abstained", stretch, samples=samples, missing=missing)

    def _finding(self, state: Literal["fired", "quiet", "abstained"], stretch: Stretch | None, **rest: Any) -> Finding:
        return Finding(
            rule=self.rule.id,
            title=self.rule.title,
            state=state,
            stretch=None if stretch is None else stretch.key,
            parameters=dict(self.thresholds),
            **rest,
        )


def plainly(text: str, stretch: Stretch | None = None, *points: Point) -> tuple[Advice, ...]:
    """Advice that rests on what the rule saw alone: nothing else of this project says the opposite."""
    return (Advice(text, points, None if stretch is None else stretch.key),)


def too_few(what: str, there: int, wanted: float) -> str:
    """A missing signal: not enough of it."""
    return f"{what}: {there:,} of the {wanted:,.0f} that it takes"


def windows(count: int, size: float, least: float) -> list[slice]:
    """Windows of `size` samples one after the other; what is left over is one too if it has `least` samples."""
    wide = max(1, round(size))
    found = [slice(start, start + wide) for start in range(0, count - wide + 1, wide)]
    rest = count - wide * len(found)
    return [*found, slice(count - rest, count)] if rest >= max(1, least) else found


def span(times: npt.NDArray[np.float64]) -> dict[str, float]:
    """When something was so, for `Evidence`: from the first of these times to the last."""
    return {"start": float(times[0]), "end": float(times[-1])} if len(times) else {}
