"""A large machine's session stays small, opens at once and costs the sampler little: three times the benchmark's bars.

`python -m benchmarks.record` measures the hour; here are three minutes of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.metrics import matching
from benchmarks.record import BAR_BYTES, BAR_FRAME_S, BAR_OPEN_S, pieces, read, write
from benchmarks.replay import Replay
from kernel_monitor.record.reader import open_session

ROWS = 1800
HOUR = 36_000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    path = tmp_path_factory.mktemp("replay") / "a.kmsession"
    return path, write(path, Replay(64, 8), ROWS)


def test_the_replay_has_the_real_columns() -> None:
    replay = Replay(64, 8)
    for column in replay.columns:
        assert matching(column.name) == [column.metric]
    parts = {column.name.rpartition("/")[2] for column in replay.columns}
    assert {"busy", "iowait", "steal", "frequency", "age", "sm_active", "jpeg", "memory_full"} <= parts


def test_it_is_small_and_exact(recorded: tuple[Path, dict[str, float]]) -> None:
    path, written = recorded
    # Without the three times: size does not depend on what else the machine does.
    assert written["bytes"] * HOUR / ROWS < BAR_BYTES
    rows = open_session(path).rows()
    again = Replay(64, 8)
    blocks = [again.block() for _ in range(ROWS // 600)]
    assert np.array_equal(rows.time, np.concatenate([times for times, _ in blocks]))
    assert np.array_equal(rows.values, np.concatenate([values for _, values in blocks]))


def test_it_opens_and_is_a_dataframe_at_once(recorded: tuple[Path, dict[str, float]]) -> None:
    found = read(recorded[0])
    # CPU time: the clock on the wall is the benchmark's, which runs alone.
    assert found["open_cpu_s"] < 3 * BAR_OPEN_S
    assert found["pandas_cpu_s"] < 3 * BAR_FRAME_S
    assert found["rows"] == ROWS
    # Beside the values: the interpreter, NumPy and pandas.
    assert found["peak_bytes"] < 250e6 + 3 * 4 * found["rows"] * found["columns"]


def test_recording_costs_little_and_holds_up_nobody(recorded: tuple[Path, dict[str, float]]) -> None:
    written = recorded[1]
    assert written["spent_s"] / ROWS / 0.1 < 3 * 0.005  # of a core
    assert written["taken_s"] / ROWS < 100e-6
    assert pieces(Replay(256, 8), 280)["longest_s"] < 0.01
