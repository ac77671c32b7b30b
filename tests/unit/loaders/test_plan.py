from __future__ import annotations

import numpy as np
import pytest

from kernel_monitor.loaders.plan import Cursor, EpochRecord


def cursor(batches: list[list[int]]) -> Cursor:
    return Cursor(iter(batches), EpochRecord(3, len(batches), None), 10, 0)


def test_batches_come_in_order_with_occurrences_and_are_recorded() -> None:
    one = cursor([[1, 2], [2, 2], [1]])
    slots = [one.take(), one.take(), one.take()]
    assert [slot and (slot.number, slot.epoch, slot.indices, slot.occurrences) for slot in slots] == [
        (0, 3, [1, 2], [0, 0]),
        (1, 3, [2, 2], [1, 2]),
        (2, 3, [1], [1]),
    ]
    assert one.take() is None
    assert one.exhausted
    assert one.record.indices.tolist() == [1, 2, 2, 2, 1]


def test_what_is_given_back_comes_first_in_order_and_is_not_recorded_twice() -> None:
    one = cursor([[1], [2], [3]])
    first, second = one.take(), one.take()
    assert first
    assert second
    one.give_back([second])
    one.give_back([first])
    numbers = [slot.number for slot in iter(one.take, None)]
    assert numbers == [0, 1, 2]
    assert one.record.indices.tolist() == [1, 2, 3]


def test_a_samplers_error_ends_the_plan_and_is_kept() -> None:
    def broken() -> object:
        yield [1]
        raise ValueError("the sampler's own")

    one = Cursor(iter(broken()), EpochRecord(0, None, None), 10, 0)  # type: ignore[call-overload]
    assert one.take() is not None
    assert one.take() is None
    assert isinstance(one.failure, ValueError)


def delivered(record: EpochRecord, number: int, indices: list[int]) -> None:
    record.delivered(number, np.array(indices), ["torchvision"] * len(indices))


@pytest.mark.parametrize(
    ("deliveries", "lost", "doubled"),
    [
        ([(0, [1, 2]), (1, [3, 4]), (2, [5])], 0, 0),
        ([(0, [1, 2]), (2, [5])], 2, 0),
        ([(0, [1, 2]), (0, [1, 2]), (1, [3, 4]), (2, [5])], 0, 2),
        ([(0, [1, 2]), (1, [3, 9]), (2, [5])], 1, 1),
        ([(0, [1]), (1, [3, 4])], 2, 0),
        ([], 5, 0),
    ],
)
def test_every_fault_of_an_engine_is_counted(deliveries: list[tuple[int, list[int]]], lost: int, doubled: int) -> None:
    one = cursor([[1, 2], [3, 4], [5]])
    while one.take():
        pass
    for number, indices in deliveries:
        delivered(one.record, number, indices)
    one.record.finish()
    assert (one.record.lost, one.record.doubled) == (lost, doubled)


def test_a_batch_answered_by_an_exception_is_not_lost() -> None:
    one = cursor([[1, 2], [3, 4]])
    while one.take():
        pass
    one.record.raised(0)
    delivered(one.record, 1, [3, 4])
    one.record.finish()
    assert (one.record.lost, one.record.samples, one.record.batches) == (0, 2, 1)
