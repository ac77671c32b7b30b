"""The load of another machine: what `NodeSampler` reads is what this machine's counters say."""

from __future__ import annotations

import pickle
import statistics
import time
from pathlib import Path

import psutil
import pytest

from kernel_monitor.sample.node_sampler import NodeSampler
from tests.unit.checks import loaded_by


def fake(folder: Path, cores: int, tick: int) -> Path:
    """A `/proc` of so many cores, in which each core was busy for 3 of 10 ticks, and 1 and 2 kB went over the net."""
    lines = [f"cpu{core} {100 + 3 * tick} 0 0 {900 + 7 * tick} 0 0 0 0 0 0" for core in range(cores)]
    (folder / "stat").write_text("\n".join(["cpu  1 1 1 1 1 1 1 1 1 1", *lines, "intr 7 7", ""]))
    (folder / "net").mkdir(exist_ok=True)
    row = f"{1000 * tick} 0 0 0 0 0 0 0 {2000 * tick} 0 0 0 0 0 0 0"
    (folder / "net/dev").write_text(f"head\nhead\n    lo: {row}\n  eth0: {row}\n")
    sizes = {"MemTotal": 1000, "MemAvailable": 400, "SwapTotal": 0, "SwapFree": 0}
    (folder / "meminfo").write_text("".join(f"{name}:   {size} kB\n" for name, size in sizes.items()))
    (folder / "vmstat").write_text("pswpin 0\npswpout 0\n")
    return folder


def test_shares_rates_and_memory_are_over_the_time_since_the_last_read(tmp_path: Path) -> None:
    began = time.monotonic()
    sampler = NodeSampler(fake(tmp_path, 3, 0), tmp_path)
    assert sampler.cores == (0, 1, 2)
    time.sleep(0.05)
    fake(tmp_path, 3, 1)
    found = sampler.read()
    assert time.monotonic() - began < 5
    assert {name: found[name] for name in ("cpu/0/busy", "cpu/2/busy", "memory")} == {
        "cpu/0/busy": pytest.approx(30.0), "cpu/2/busy": pytest.approx(30.0), "memory": 600 * 1024,
    }  # fmt: skip
    assert 200 < found["network/received"] < 1000 / 0.05  # the loopback's bytes do not count
    assert found["network/sent"] == pytest.approx(2 * found["network/received"])
    assert set(found) == {*(f"cpu/{core}/busy" for core in range(3)), "network/received", "network/sent", "memory"}
    fake(tmp_path, 4, 2)
    sampler.read()
    fake(tmp_path, 4, 3)
    assert sampler.read()["cpu/3/busy"] == pytest.approx(30.0)  # a core that came
    assert len(sampler.cores) == 4


def test_it_agrees_with_psutil_about_this_machine() -> None:
    def busy() -> list[tuple[float, float]]:
        return [(sum(one[:8]) - one.idle - one.iowait, sum(one[:8])) for one in psutil.cpu_times(percpu=True)]

    sampler = NodeSampler()
    sampler.read()
    before, until = busy(), time.monotonic() + 0.6
    while time.monotonic() < until:
        pass
    found, after = sampler.read(), busy()
    shares = [100 * (new[0] - old[0]) / (new[1] - old[1]) for old, new in zip(before, after, strict=True)]
    assert [found[f"cpu/{core}/busy"] for core in sampler.cores] == [pytest.approx(share, abs=12) for share in shares]
    assert sum(found[f"cpu/{core}/busy"] for core in sampler.cores) > 80  # this process alone keeps a core busy
    memory = psutil.virtual_memory()
    assert found["memory"] == pytest.approx(memory.total - memory.available, rel=0.1)


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    fake(tmp_path, 2, 0)
    (tmp_path / "meminfo").unlink()
    sampler = NodeSampler(tmp_path, tmp_path)
    fake(tmp_path, 2, 1)
    (tmp_path / "net/dev").unlink()
    (tmp_path / "meminfo").unlink()
    assert set(sampler.read()) == {"cpu/0/busy", "cpu/1/busy"}
    empty = tmp_path / "empty"
    empty.mkdir()
    nothing = NodeSampler(empty, empty)
    assert (nothing.read(), nothing.cores) == ({}, ())


def test_it_stays_in_its_process_and_needs_neither_torch_nor_numpy() -> None:
    with pytest.raises(TypeError, match="make one there"):
        pickle.dumps(NodeSampler())
    code = (
        "from kernel_monitor.sample.node_sampler import NodeSampler; import kernel_monitor.node_sources; "
        "NodeSampler().read(); import threading; assert threading.active_count() == 1"
    )
    assert loaded_by(code, "torch", "numpy", "ray", "bokeh", "IPython") == []


@pytest.mark.alone
def test_a_reading_of_64_cores_takes_a_fraction_of_a_millisecond(tmp_path: Path) -> None:
    sampler, taken, found = NodeSampler(fake(tmp_path, 64, 0), tmp_path), [], {}
    for tick in range(1, 200):
        fake(tmp_path, 64, tick)
        began = time.perf_counter()
        found = sampler.read()
        taken.append(time.perf_counter() - began)
    assert len(found) == 67
    assert statistics.median(taken) < 1e-3  # 0.2 ms on an idle machine
