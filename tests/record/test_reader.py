"""A session is read wherever and in whatever state its file is, and what cannot be read is named."""

from __future__ import annotations

import builtins
import gc
import os
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kernel_monitor.analysis.loops import epoch_counts
from kernel_monitor.errors import MonitorError, SessionError
from kernel_monitor.record import format as format_module
from kernel_monitor.record.reader import Bins, bin_width, open_session
from kernel_monitor.record.sessions import read_entry

from .recorded import ORIGIN, SERIES, feed, interrupted, mounted, recorder, session, sql, waves


def test_a_segment_and_some_series(path: Path) -> None:
    times, values = waves(2000)
    found = session(path, 2000)
    rows = found.rows(start=70.0, end=130.0, series=["memory/used", "cpu/1/busy"])
    wanted = (times >= 70) & (times <= 130)
    assert rows.time.tolist() == times[wanted].tolist()
    assert np.array_equal(rows.values, values[wanted][:, [3, 2]])
    assert rows.seq.tolist() == (np.flatnonzero(wanted) + 1).tolist()
    with pytest.raises(SessionError, match="no series cpu/9/busy"):
        found.rows(series=["cpu/9/busy"])
    assert len(found.rows(start=1e6)) == 0


def test_a_dataframe_has_wall_times_and_names(path: Path) -> None:
    times, values = waves(100)
    frame = session(path, 100).to_pandas()
    assert list(frame.columns) == [name for name, _ in SERIES]
    assert isinstance(frame.index, pd.DatetimeIndex)
    assert str(frame.index.tz) == "UTC"
    stamps = [stamp.timestamp() for stamp in frame.index]
    assert np.abs(np.array(stamps) - (ORIGIN + times)).max() < 1e-5
    assert np.array_equal(frame.to_numpy(), values)
    assert set(map(str, frame.dtypes)) == {"float32"}


def test_without_pandas_a_sentence_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = session(path)
    load = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MonitorError, match="pip install pandas"):
        found.to_pandas()


# -- snapshots --------------------------------------------------------------------------------------------------------


def test_a_short_session_is_shown_as_it_is(path: Path) -> None:
    found = session(path, 50).snapshot()
    times, values = waves(50)
    assert found.time.tolist() == times.tolist()
    assert np.array_equal(found.values, values)
    assert found.schema.interval == 0.1
    recorded = found.facts["recorded"]
    assert recorded["started"] == ORIGIN
    assert recorded["bin_s"] is None
    assert recorded["rows"] == 50
    assert recorded["live"] is False
    assert recorded["ended"]["goodbye"] is True
    assert type(found).from_bytes(found.to_bytes()).facts == found.facts


def test_a_long_one_is_shown_as_means_with_its_gap(path: Path) -> None:
    times, values = waves(3000)
    there = (times < 100) | (times > 150)
    values[40:60, 1] = np.nan
    with recorder(path, rows=0) as (one, _):
        feed(one, times[there], values[there])
        one.command({"do": "values", "rows": [[t, {"loader/a/images": 5.0}] for t in times[there][::3].tolist()]})
    found = open_session(path).snapshot(max_rows=150)
    bin_s = found.facts["recorded"]["bin_s"]
    assert bin_s == pytest.approx(2.1)  # 300 s in whole intervals
    assert found.schema.interval == bin_s
    assert len(found.seq) <= 150
    for place, middle in enumerate(found.time):
        inside = there & (np.floor(times / bin_s) == np.floor(middle / bin_s))
        assert inside.any()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            mean = np.nanmean(values[inside].astype(np.float64), axis=0)
        assert np.allclose(found.values[place, 1:4], mean[1:], rtol=1e-5, equal_nan=True), middle
    assert (found.values[:, 0] == np.float32(bin_s)).all()  # the next row is a bin away
    apart = np.diff(found.time)
    assert (apart > 1.5 * bin_s).sum() == 1  # the gap, and no other
    assert found.schema.names[-1] == "loader/a/images"
    assert (found.values[:, -1] == 5).all()


def test_bins_do_not_depend_on_how_rows_arrive() -> None:
    random = np.random.default_rng(0)
    times = np.cumsum(random.uniform(0.05, 3, 500))
    values = random.normal(size=(3, 500)).astype(np.float32)
    values[random.random((3, 500)) < 0.3] = np.nan
    whole, pieces = Bins(2.0), Bins(2.0)
    whole.add(times, values)
    for cut in np.array_split(np.arange(500), 77):
        pieces.add(times[cut], values[:, cut])
    one, other = whole.result(), pieces.result()
    assert np.array_equal(one[0], other[0])
    assert np.allclose(one[1], other[1], equal_nan=True, rtol=1e-6)


@pytest.mark.parametrize(("span", "rows"), [(3600, 6000), (599.95, 6000), (86400, 6000), (10, 3), (0, 1)])
def test_bins_fit(span: float, rows: int) -> None:
    times = np.arange(0.05, span + 0.1, 0.1)
    bins = Bins(bin_width(times[0], times[-1], 0.1, rows))
    bins.add(times, np.zeros((1, len(times)), dtype=np.float32))
    assert len(bins.result()[0]) <= max(rows, 2)


# -- files in every state ---------------------------------------------------------------------------------------------


def test_one_that_was_interrupted_is_whole(path: Path) -> None:
    interrupted(path)
    found = open_session(path)
    assert len(found.rows()) == 20
    assert not found.live
    assert found.ended == {"reason": "the sampler was killed", "time": found.rows().time[-1], "goodbye": False}
    assert found.check() == []


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder one that nobody can write into: a read-only mount where this user may, else by its mode."""
    with mounted(folder, "--bind", str(folder)) as bound:
        if bound:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        else:
            folder.chmod(0o555)
        try:
            yield
        finally:
            if not bound:
                folder.chmod(0o755)


@pytest.mark.parametrize("state", ["ended", "interrupted", "log only"])
def test_one_on_a_read_only_medium_is_read_to_its_last_row(tmp_path: Path, state: str) -> None:
    path = tmp_path / "medium" / "a.kmsession"
    if state == "ended":
        session(path, 20)
    else:
        interrupted(path)
    if state == "log only":
        path.with_name(path.name + "-shm").unlink()  # as a copy of the two files has it
    with read_only(path.parent):
        with pytest.raises(OSError, match=r"Read-only|Permission"):
            path.with_name("x").touch()
        found = open_session(path)
        assert len(found.rows()) == 20
        assert found.check() == []
        copy = open_session(found.copy(tmp_path))
        assert len(copy.rows()) == 20


def test_temporary_copies_go_with_their_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    path = tmp_path / "medium" / "a.kmsession"
    interrupted(path)
    path.with_name(path.name + "-shm").unlink()
    with read_only(path.parent):
        found = open_session(path)
        assert len(list((tmp_path / "tmp").iterdir())) == 1
        assert len(found.rows()) == 20
        del found
        gc.collect()
        assert list((tmp_path / "tmp").iterdir()) == []


def test_a_copy_does_not_overwrite_and_may_be_named_or_not(tmp_path: Path, path: Path) -> None:
    found = session(path)
    folder = tmp_path / "copies"
    folder.mkdir()
    assert found.copy(folder) == folder / "a.kmsession"
    assert found.copy(tmp_path / "mine").name == "mine.kmsession"
    for taken in (folder, path):
        with pytest.raises(SessionError, match="exists"):
            found.copy(taken)
    with pytest.raises(SessionError, match="cannot be written"):
        found.copy(tmp_path / "nowhere" / "x.kmsession")


# -- files that are none, or not whole --------------------------------------------------------------------------------


def test_what_is_no_session_is_named(tmp_path: Path) -> None:
    empty, text, other = tmp_path / "empty", tmp_path / "text", tmp_path / "other"
    empty.touch()
    text.write_text("hello " * 1000)
    sql(other, "CREATE TABLE x (y)", "PRAGMA application_id = 7")
    for path, said in ((empty, "nothing was recorded"), (text, "not a recorded session"), (other, "another program")):
        with pytest.raises(SessionError, match=said) as caught:
            open_session(path)
        assert str(path) in str(caught.value)
    with pytest.raises(SessionError, match="no session"):
        open_session(tmp_path / "nothing.kmsession")
    with pytest.raises(SessionError, match="no recorded session in"):
        open_session(tmp_path)


def test_a_session_without_rows_is_empty(path: Path) -> None:
    with pytest.raises(SessionError, match="is empty: nothing was measured yet"):
        session(path, rows=0)


def test_the_counts_of_past_epochs_are_with_their_loader(path: Path) -> None:
    empty = {"epoch": 1, "batches": 0, "samples": 0, "planned": 64, "lost": 64, "doubled": 0}
    state = {"id": "loader-1", "name": "train", "epoch": 2, "batch": 0, "samples": 0, "planned": 64, "ended": True}
    with recorder(path, rows=5) as (one, _):
        one.command({"do": "loaders", "loaders": [state]})
        one.command({"do": "epochs", "epochs": {"loader-1": [empty]}})
    recorded = open_session(path)
    assert recorded.loaders == [{**state, "epochs": [empty]}]
    flagged = {count.epoch: count.problem for count in epoch_counts(recorded.snapshot())}
    assert flagged[1] == "delivered 0 of 64 samples, 64 lost"


@pytest.mark.parametrize("later", [-1, 1])
def test_another_format_is_refused_and_not_called_damaged(path: Path, later: int) -> None:
    session(path)
    version = format_module.FORMAT + later
    sql(path, f"PRAGMA user_version = {version}")
    with pytest.raises(SessionError, match=f"has format {version}; .* reads format {format_module.FORMAT}.*--upgrade"):
        open_session(path)
    assert not read_entry(path).damaged


def test_a_damaged_chunk_is_named_and_the_rest_is_read(path: Path) -> None:
    times, _ = waves(1800)
    session(path, 1800)
    ((number, data, rows),) = sql(path, "SELECT id, data, n FROM chunks ORDER BY id LIMIT 1 OFFSET 1")
    broken = bytearray(data)
    broken[len(broken) // 2] ^= 255
    sql(path, "UPDATE chunks SET data = ? WHERE id = ?", values=(bytes(broken), number))
    found = open_session(path)
    assert len(found.check()) == 1
    assert f"{rows} rows from" in found.check()[0]
    with pytest.warns(UserWarning, match="is damaged; missing: "):
        kept = found.rows()
    assert len(kept) == 1800 - rows
    assert set(kept.time) <= set(times)
    assert len(found.snapshot(max_rows=100).facts["recorded"]["damaged"]) == 1


def verdict(path: Path) -> str:
    """What opening and checking a session says: its first problem, in words, or nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            found = open_session(path)
            problems = found.check()
            assert len(found.rows()) <= 3000
        except SessionError as error:
            return str(error) if str(path) in str(error) else ""
    return problems[0] if problems else ""


def test_any_page_overwritten_is_found_and_the_rest_may_be_read(path: Path) -> None:
    session(path, 3000)
    assert verdict(path) == ""
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for page in range(len(whole) // 4096):
        broken = bytearray(whole)
        broken[page * 4096 : (page + 1) * 4096] = random.bytes(4096)
        path.write_bytes(broken)
        assert verdict(path), page


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_file_cut_short_is_found(path: Path, share: float) -> None:
    session(path, 3000)
    os.truncate(path, int(path.stat().st_size * share))
    assert verdict(path)
