"""A job on two machines: its ranks, their clocks, and a machine that goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.kernels import Page

from ..waiting import until
from .conftest import ROOT
from .hosts import Host, Namespaces, second_host
from .peers import LOOP
from .test_joining import ranks, rows_of, wait_for

TCP = "monitor.configure(ranks='tcp://{}:0')"


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Host]:
    with second_host(tmp_path) as host:
        yield host


def listening(page: Page, there: Host) -> str:
    """Let the session listen for another machine; returns the folder that names it."""
    page.run(f"from kernel_monitor import monitor\n{TCP.format(there.here)}")
    folder: str = page.value("monitor.live_session.ranks.server.folder")
    return folder


def variables(page: Page) -> dict[str, str]:
    """What `%monitor join` says to set on another machine."""
    words: str = page.value("monitor.live_session.ranks.join_words()")
    lines = words.partition("On other machines")[2].splitlines()[1:]
    return {name: value.strip("'") for name, value in (line.removeprefix("export ").split("=", 1) for line in lines)}


def environment(rank: int, join: str, there: Host, port: int = 29500) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": there.here,
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": there.interfaces[rank],
        "KERNEL_MONITOR_JOIN": join,
        "PYTHONPATH": str(ROOT),
    }


def test_a_job_on_two_machines_is_one_job(page: Page, there: Host, port: int) -> None:
    folder = listening(page, there)
    here = Host(ROOT)
    try:
        training = ("-m", "tests.ranks.training")
        processes = [
            here.start(*training, **environment(0, folder, there, port), STEPS="80"),
            there.start(*training, **environment(1, there.copied(folder), there, port), STEPS="80", SLOW_RANK="1"),
        ]
        wait_for(page, "len(ranks) == 2 and all(r.steps for r in ranks)", 60)
        until(lambda: "clocks of the ranks' machines: ±" in page.value("monitor.status()"))
        status = page.value("monitor.status()")
        for process in processes:
            assert process.wait(60) == 0
    finally:
        here.stop()
    wait_for(page, "not any(r.alive for r in ranks)")
    assert [entry[:4] for entry in ranks(page)] == [(1, 0, 2, True), (1, 1, 2, True)]
    assert page.value("[r.host for r in monitor.live_session.ranks.ranks]") == ["", there.name or ""]
    assert min(len(rows_of(page, "step", f"1-{number}")) for number in (0, 1)) > 10
    # Both clocks are this machine's, so that the exchange has to find no difference, within its own bound.
    bound = float(status.rpartition("±")[2].partition(" ms")[0])
    assert bound < 250  # on a machine that others use; about 1 on a quiet one


def test_a_machine_that_is_cut_off_and_comes_back(page: Page, there: Host) -> None:
    own = environment(0, listening(page, there), there) | variables(page)
    assert own["KERNEL_MONITOR_JOIN"].startswith(f"tcp://{there.here}:")
    process = there.start("-c", LOOP, **own)
    wait_for(page, "ranks and ranks[0].steps", 40)
    if isinstance(there, Namespaces):
        there.cut()
        wait_for(page, "not ranks[0].alive")
        assert ranks(page)[0][5] == "nothing was heard of it for 5 s"
        there.cut(off=False)
        wait_for(page, "ranks[0].alive")
    process.kill()
    process.wait()
    wait_for(page, "not ranks[0].alive")


def test_ranks_come_back_when_the_monitor_starts_again(page: Page, there: Host) -> None:
    folder = listening(page, there)
    here = Host(ROOT)
    try:
        own = here.start("-c", LOOP, **environment(0, folder, there))
        other = there.start("-c", LOOP, **environment(1, there.copied(folder), there))
        wait_for(page, "len(ranks) == 2", 40)
        page.run("monitor.stop()")
        assert page.value("__import__('os').listdir(folder)".replace("folder", repr(folder))) == ["join.json"]
        time.sleep(1)
        assert (own.poll(), other.poll()) == (None, None)
        page.run("monitor.start()")
        wait_for(page, "len(ranks) == 2 and all(r.alive and r.steps for r in ranks)", 20)
        before = len(rows_of(page, "step", "1-1"))
        until(lambda: len(rows_of(page, "step", "1-1")) > before)
    finally:
        here.stop()
