"""Random numbers that depend on nothing but the sample they are for.

A counter-based hash (the finaliser of SplitMix64, applied once per word of the key) turns
(seed, epoch, index, occurrence) into a key and (key, operation, draw) into a uniform number. There is no state,
so the order in which samples are computed, and by which engine or process, cannot matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_OPERATIONS = 1 << 20  # draws per operation before two operations could share a counter


def _mix(words: UInt64s) -> UInt64s:
    """Finaliser of SplitMix64, element by element; multiplication wraps at 64 bits."""
    words = (words ^ (words >> _S30)) * _M1
    words = (words ^ (words >> _S27)) * _M2
    return words ^ (words >> _S31)


def _mix_int(word: int) -> int:
    return int(_mix(np.array([word & _MASK], dtype=np.uint64))[0])


def sample_keys(seed: int, epoch: int, indices: Sequence[int], occurrences: Sequence[int]) -> UInt64s:
    """Return one 64-bit key per sample, uint64[n].

    The seed is any integer, taken modulo 2**64; indices in the data set may be negative; occurrences count how often an
    index came earlier in the epoch.
    """
    base = _mix_int(_mix_int(seed + _GOLDEN) + epoch * _GOLDEN + 1)
    index = np.asarray(indices, dtype=np.int64).astype(np.uint64)
    count = np.asarray(occurrences, dtype=np.int64).astype(np.uint64)
    keys = _mix(np.uint64(base) + (index + np.uint64(1)) * np.uint64(_GOLDEN))
    return _mix(keys + (count + np.uint64(1)) * np.uint64(_GOLDEN))


def uniforms(keys: UInt64s, operation: int, draws: int) -> Floats:
    """Return uniform numbers in [0, 1) with 53 random bits, float64[n, draws].

    Of n samples by their `keys`, for the operation at this position in the chain of transforms.
    """
    first = operation * _OPERATIONS + 1
    counters = np.arange(first, first + draws, dtype=np.uint64) * np.uint64(_GOLDEN)
    words = _mix(keys[:, None] + counters[None, :])
    numbers: Floats = (words >> _S11).astype(np.float64) * 2.0**-53
    return numbers


def stream_seeds(keys: UInt64s, operation: int) -> list[int]:
    """Return a seed (63 bits) per sample, by its key, for generators that an operation draws from by itself.

    The operation is a position in the chain of transforms; negative for what is no transform, see `random_streams`.
    """
    offset = np.uint64(((operation * _OPERATIONS + 1) * _GOLDEN) & _MASK)
    seeds: list[int] = (_mix(keys + offset) >> np.uint64(1)).tolist()
    return seeds
