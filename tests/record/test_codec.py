"""What is packed comes out again bit for bit, whatever the values are."""

from __future__ import annotations

import math
import struct
import zlib

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_monitor.record import codec
from kernel_monitor.record.format import STEP
from kernel_monitor.record.row_table import Chunk, Damaged, Tail, unpacked_steps

Floats = npt.NDArray[np.float32]


def pack(names: list[str], values: Floats, missed: npt.NDArray[np.uint32] | None = None) -> bytes:
    rows = len(values)
    times = (0.05 + 0.1 * np.arange(rows)).astype("<f8").tobytes()
    lost = np.zeros(rows, dtype="<u4") if missed is None else missed
    job = codec.encode(names, times, lost.tobytes(), values.astype("<f4").tobytes())
    while True:
        try:
            next(job)
        except StopIteration as end:
            return bytes(end.value)


def unpack(data: bytes, places: list[int], rows: int) -> Floats:
    out = np.zeros((max(places) + 1, rows), dtype=np.float32)
    Chunk(data, rows, len(places), len(places)).fill(out, np.array(places, dtype=np.intp))
    return out


def same(one: Floats, other: Floats) -> bool:
    return np.array_equal(one.view(np.uint32), other.view(np.uint32))


ODD = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38, 100.0], dtype=np.float32)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, 70),
    shapes=st.lists(st.sampled_from(["constant", "held", "few", "noise", "odd", "bits"]), min_size=1, max_size=8),
    family=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_values_come_back_bit_for_bit(rows: int, shapes: list[str], family: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    made = {
        "constant": np.full(rows, 7.25, dtype=np.float32),
        "held": np.repeat(random.normal(size=rows // 10 + 1), 10)[:rows].astype(np.float32),
        "few": np.round(random.uniform(0, 9, rows)).astype(np.float32),
        "noise": random.normal(size=rows).astype(np.float32),
        "odd": random.choice(ODD, rows),
        "bits": random.integers(0, 2**32, rows, dtype=np.uint32).view(np.float32),
    }
    values = np.stack([random.permutation(made[shape]) if shape == "odd" else made[shape] for shape in shapes], axis=1)
    names = [f"cpu/{n}/busy" if family else f"a/{'x' * n}" for n in range(len(shapes))]
    assert same(unpack(pack(names, values), list(range(len(shapes))), rows), np.ascontiguousarray(values.T))


@pytest.mark.parametrize("different", [1, 255, 256, 257, 4096, 4097, 20000])
def test_every_size_of_table(different: int) -> None:
    random = np.random.default_rng(different)
    columns = 40
    values = random.integers(0, different, (600, columns)).astype(np.float32)
    values.flat[:different] = np.arange(different)[: values.size]
    found = unpack(pack([f"cpu/{n}/user" for n in range(columns)], values), list(range(columns)), 600)
    assert same(found, np.ascontiguousarray(values.T))


def test_only_the_wanted_columns_are_filled_in() -> None:
    values = np.arange(40, dtype=np.float32).reshape(10, 4)
    out = np.full((2, 10), -1, dtype=np.float32)
    Chunk(pack(["a", "b", "c/0/x", "c/1/x"], values), 10, 4, 3).fill(out, np.array([-1, 1, -1, 0]))
    assert out[0].tolist() == values[:, 3].tolist()
    assert out[1].tolist() == values[:, 1].tolist()


def test_times_and_missed_deadlines_come_back() -> None:
    missed = np.array([0, 3, 0, 70000], dtype="<u4")
    chunk = Chunk(pack(["a"], np.zeros((4, 1), dtype=np.float32), missed), 4, 1, 1)
    assert chunk.times.tolist() == (0.05 + 0.1 * np.arange(4)).tolist()
    assert chunk.missed.tolist() == missed.tolist()


def test_held_values_cost_next_to_nothing() -> None:
    random = np.random.default_rng(1)
    names = [f"gpu/{n}/power_draw" for n in range(8)]
    fresh = random.normal(300, 50, (600, 8)).astype(np.float32)
    held = np.repeat(fresh[:60], 10, axis=0)
    assert len(pack(names, held)) < len(pack(names, fresh)) / 6


@pytest.mark.parametrize("cut", [0, 1, 20, -1, -30])
def test_a_chunk_cut_short_is_damaged(cut: int) -> None:
    data = pack(["a", "b"], np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32))[:cut]
    with pytest.raises(Damaged):
        Chunk(data, 100, 2, 2)


def test_a_flipped_bit_is_seen() -> None:
    whole = pack(["a", "b"], np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32))
    good = unpack(whole, [0, 1], 100)
    seen = 0
    places = range(0, len(whole), 7)
    for place in places:
        broken = bytearray(whole)
        broken[place] ^= 4
        try:
            found = unpack(bytes(broken), [0, 1], 100)
        except Damaged:
            seen += 1
        else:
            assert same(found, good), place  # a bit that says nothing: padding
    assert seen >= len(places) - 2


def test_a_tail_of_a_wrong_length_is_damaged() -> None:
    with pytest.raises(Damaged):
        Tail(b"x" * 30, 2, 1)


def test_steps_come_back_packed_and_not() -> None:
    rows = [(1.5 + n, n // 10, n % 10, 32, 0.01 * n, 0.5, 0.0, 0.1, 0.2, math.nan, n % 3) for n in range(50)]
    raw = b"".join(STEP.pack(*row) for row in rows)
    packed = zlib.compress(b"".join(codec.planes(raw, STEP.size)))
    for found in (unpacked_steps(raw, 50, packed=False), unpacked_steps(packed, 50, packed=True)):
        assert found["end"].tolist() == [row[0] for row in rows]
        assert found["batch"].tolist() == [row[2] for row in rows]
        assert found["flags"].tolist() == [row[-1] for row in rows]
        assert found["wait"].tolist() == [struct.unpack("f", struct.pack("f", row[4]))[0] for row in rows]
    with pytest.raises(Damaged):
        unpacked_steps(packed[:-5], 50, packed=True)
