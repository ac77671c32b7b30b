"""One GPU's questions, asked by one thread, and their newest answers, read by another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..probe import NAN
from .nvml import Device, Part, Question

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Table(NamedTuple):
    """Parts and their values, which go together: when there are others, there is another table."""

    parts: tuple[Part, ...]
    values: list[float]


class Reading(NamedTuple):
    """When a group was read (`time.monotonic()`) and what time that covers, in s."""

    at: float
    window: float


class Change(NamedTuple):
    """What went missing, with the reason, or came back."""

    gpu: int
    part: str
    words: str


def in_words(changes: Iterable[Change]) -> list[str]:
    """A sentence for all parts of a GPU that changed for the same reason."""
    together: dict[tuple[int, str], list[str]] = {}
    for gpu, part, words in changes:
        together.setdefault((gpu, words), []).append(part)
    return [f"GPU {gpu} {', '.join(parts)}: {words}" for (gpu, words), parts in together.items()]


class Desk:
    """The newest values of some questions, and NVML's reasons for those that are missing. Written by one thread.

    Attributes:
        table: the newest values.
        reasons: by part, why it is missing.
        groups: of the questions, in order.
        readings: per group, of the first of its questions that has an answer.
    """

    def __init__(self, device: Device, questions: Sequence[Question]) -> None:
        self.device = device
        self.reasons: dict[str, str] = {}
        self.readings: dict[str, Reading] = {}
        self.questions: list[Question] = []
        self._places: list[int] = []
        self.lay_out(questions)

    def lay_out(self, questions: Sequence[Question]) -> None:
        """Have these questions from now on."""
        self.close()
        self.questions = list(questions)
        parts: list[Part] = []
        self._places = []
        for question in questions:
            self._places.append(len(parts))
            parts += question.parts
        self.groups = tuple(dict.fromkeys(question.group for question in questions))
        names = {name for name, _ in parts}
        self.reasons = {name: words for name, words in self.reasons.items() if name in names}
        self.readings = {}
        self.table = Table(tuple(parts), [NAN] * len(parts))

    def ask(self, now: float, tolerance: float = 0.0) -> list[Change]:
        """Ask what is due, or will be within `tolerance` (s); returns what changed."""
        changes: list[Change] = []
        soon = now + tolerance
        for question, place in zip(self.questions, self._places, strict=True):
            if question.due <= soon:
                self._ask(question, place, now, changes)
        return changes

    def _ask(self, question: Question, place: int, now: float, changes: list[Change]) -> None:
        values = self.table.values
        refused = known = 0
        for offset, answer in enumerate(question.answers(now)):
            part = question.parts[offset][0]
            if isinstance(answer, str):
                values[place + offset] = NAN
                refused += 1
                if self.reasons.get(part) != answer:
                    self.reasons = {**self.reasons, part: answer}
                    changes.append(Change(self.device.index, part, answer))
            else:
                values[place + offset] = answer
                known += answer == answer
                if part in self.reasons:
                    self.reasons = {name: words for name, words in self.reasons.items() if name != part}
                    changes.append(Change(self.device.index, part, "is back"))
        # Of several parts one may be refused for good while the others are there: those are asked on.
        question.due = now + (question.retry if refused == len(question.parts) else question.period)
        if known and self._leading(question):
            self.readings[question.group] = Reading(question.at, question.window)

    def _leading(self, question: Question) -> bool:
        """Whether the question is the first of its group that is answered."""
        for other in self.questions:
            if other is question:
                return True
            if other.group == question.group and other.parts[0][0] not in self.reasons:
                return False
        return False

    def close(self) -> None:
        """Give everything back to NVML, as far as it is there to take it."""
        for question in self.questions:
            try:
                question.close()
            except self.device.nvml.NVMLError as error:
                self.device.words(error)
