"""What the recorder is told: values twice a second, steps as they are taken, states when they changed."""

from __future__ import annotations

import json
from typing import Any, cast

from kernel_monitor.runtime.recorder import RecorderFeed
from kernel_monitor.steps.measured_step import ON_DEVICE, Step


class Loader:
    """What is asked of a loader here."""

    def __init__(self, name: str = "loader-1") -> None:
        self.id = name
        self.worker_pids: list[int] = []


class Sampler:
    """Collects what is sent, and is the clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sent: list[dict[str, Any]] = []
        self.recording = True
        self.teller = RecorderFeed(self.take, lambda: self.recording, clock=lambda: self.now)

    def take(self, message: dict[str, Any]) -> None:
        self.sent.append(json.loads(json.dumps(message)))

    def row(self, loader: Loader, at: float, states: list[dict[str, Any]] | None = None) -> None:
        self.now += 0.1
        self.teller.row(at, {f"loader/{loader.id}/images": at}, states or [], cast("Any", [loader]))

    def of(self, do: str) -> list[dict[str, Any]]:
        return [message for message in self.sent if message["do"] == do]


def test_values_go_in_rows_every_half_second() -> None:
    sampler, loader = Sampler(), Loader()
    for tick in range(1, 13):
        sampler.row(loader, tick / 8)
    rows = [row for message in sampler.of("values") for row in message["rows"]]
    assert rows == [[tick / 8, {"loader/loader-1/images": tick / 8}] for tick in range(1, len(rows) + 1)]
    assert len(sampler.of("values")) == 2
    assert len(rows) >= 10


def test_steps_are_told_as_they_are_with_what_was_not_measured() -> None:
    sampler = Sampler()
    plain = Step(1.5, 0, 7, 4, 0.25, 1.0)
    phased = Step(2.5, 0, 8, 4, 0.25, 1.0, 0.125, 0.25, 0.5, 0.0625, ON_DEVICE)
    sampler.teller.record("steps", loader="loader-1", rows=[plain, phased], dropped=3)
    (told,) = sampler.of("steps")
    assert (told["loader"], told["dropped"], told["rows"][1]) == ("loader-1", 3, list(phased))
    assert told["rows"][0][:6] == list(plain[:6])
    assert all(one != one for one in told["rows"][0][6:10]), "NaN"


def test_what_waits_is_told_before_the_goodbye() -> None:
    sampler, loader = Sampler(), Loader()
    sampler.row(loader, 0.1)
    sampler.teller.goodbye("stopped", cast("Any", [loader]), [])
    assert [message["do"] for message in sampler.sent] == ["values", "loaders", "goodbye"]
    assert sampler.sent[-1] == {"do": "goodbye", "reason": "stopped"}


def test_facts_that_changed_are_told_without_a_new_greeting() -> None:
    sampler, loader = Sampler(), Loader()
    loader.worker_pids = [7]
    sampler.teller.begin({"price": None})
    sampler.row(loader, 0.1, [{"id": "loader-1"}])
    sampler.teller.record("facts", facts={"price": 2.5})
    sampler.row(loader, 1.3, [{"id": "loader-1"}])
    assert [message["do"] for message in sampler.sent if message["do"] != "values"] == [
        "facts", "roles", "loaders", "facts",
    ]  # fmt: skip


def test_states_go_at_most_once_a_second_and_only_when_they_changed() -> None:
    sampler, loader = Sampler(), Loader()
    for tick in range(30):
        sampler.row(loader, tick / 10, [{"id": "loader-1", "batch": min(tick, 14)}])
    told = [message["loaders"][0]["batch"] for message in sampler.of("loaders")]
    assert told == sorted(set(told))
    assert 2 <= len(told) <= 3
    assert told[-1] == 14


def test_workers_are_told_when_they_change_even_without_a_recording() -> None:
    sampler, loader = Sampler(), Loader()
    sampler.recording = False
    for tick in range(50):
        loader.worker_pids = [] if tick < 15 else [12, 11] if tick < 35 else [13]
        sampler.row(loader, tick / 10, [{"id": "loader-1", "batch": tick}])
    assert [message["workers"] for message in sampler.sent] == [[11, 12], [13]]


def test_a_new_sampler_is_told_everything_again() -> None:
    sampler, loader = Sampler(), Loader()
    loader.worker_pids = [7]
    state = [{"id": "loader-1", "batch": 3}]
    sampler.teller.begin({"python": "3.12"})
    sampler.row(loader, 0.1, state)
    sampler.teller.begin({"python": "3.12"})
    sampler.row(loader, 0.2, state)
    dos = [message["do"] for message in sampler.sent]
    assert dos == ["facts", "roles", "loaders", "facts", "roles", "loaders"]


def test_nothing_but_roles_is_told_to_a_sampler_that_does_not_record() -> None:
    sampler, loader = Sampler(), Loader()
    sampler.recording = False
    sampler.teller.record("event", event={"kind": "switch", "time": 1.0})
    sampler.teller.record("facts", facts={"price": 2.5})
    for tick in range(30):
        sampler.teller.record("steps", loader="loader-1", rows=[Step(1.0, 0, tick, 4, 0.25, 1.0)])
        sampler.row(loader, tick / 10, [{"id": "loader-1", "batch": tick}])
    assert sampler.sent == []


def test_the_counts_of_past_epochs_are_told_when_they_changed() -> None:
    sampler = Sampler()
    one: dict[str, list[dict[str, Any]]] = {"loader-1": [{"epoch": 0, "samples": 0}]}
    for past in (one, one, {**one}):
        sampler.teller.epochs(past)
    assert [message["epochs"] for message in sampler.of("epochs")] == [one, one]
    sampler.teller.begin({})
    sampler.teller.epochs(one)
    assert len(sampler.of("epochs")) == 3
