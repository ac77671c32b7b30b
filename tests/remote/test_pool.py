"""Where workers are placed and which nodes are left out: nodes as a cluster reports them, without one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from ray.util import scheduling_strategies

from kernel_monitor.ray import node_worker
from kernel_monitor.ray import pool as pool_module
from kernel_monitor.ray.node_worker import NodeWorker, Place, Sending, Work, probes, versions
from kernel_monitor.ray.nodes import sentence
from kernel_monitor.ray.pool import Dispatch, Pool

GREETING = {"differs": None, "pid": 1, "shared_memory": 8 << 30, "sees_files": True}
SENDING = Sending(always=False, refusal=None)


class Reference:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def future(self) -> concurrent.futures.Future[Any]:
        made: concurrent.futures.Future[Any] = concurrent.futures.Future()
        if isinstance(self._answer, Exception):
            made.set_exception(self._answer)
        elif self._answer is not None:
            made.set_result(self._answer)
        return made


class FakeRay:
    """What the pool asks of Ray. By node, `greetings` answer `hello`, and `begins` says whether a worker gets a core.

    Without an answer, or a core, nothing comes.
    """

    class exceptions:  # noqa: N801
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            pass

    def __init__(self, **cores: int) -> None:
        self.cores = cores  # by node; `head` is the driver's
        self.greetings: dict[str, Any] = {}
        self.begins: dict[str, bool] = {}
        self.placed: list[str] = []
        self.cloudpickle = self

    def register_pickle_by_value(self, _module: Any) -> None: ...
    def get_runtime_context(self) -> Any:
        return self

    def get_node_id(self) -> str:
        return "head"

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "Alive": True, "NodeManagerAddress": f"10.0.0.{place}",
             "Resources": {"CPU": float(cores), "object_store_memory": 4e9}}
            for place, (name, cores) in enumerate(self.cores.items())
        ]  # fmt: skip

    def remote(self, _kind: type) -> Any:
        return self

    def put(self, blob: bytes) -> Any:
        return blob

    def kill(self, handle: Any, no_restart: bool) -> None:
        assert no_restart

    def options(self, *, scheduling_strategy: Any, **options: Any) -> Any:
        assert options == {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        return Started(self, scheduling_strategy.node_id)


class Started:
    def __init__(self, ray: FakeRay, node: str) -> None:
        self.ray, self.node = ray, node
        self.hello = self.load = self
        self.__ray_ready__ = Begun(ray.begins.get(node, True))

    def remote(self, *args: Any) -> Any:
        if len(args) == 5:  # the constructor
            self.ray.placed.append(self.node)
            return self
        return Reference(self.ray.greetings.get(self.node, GREETING))


class Begun:
    def __init__(self, begins: bool) -> None:
        self._answer = True if begins else None

    def remote(self) -> Reference:
        return Reference(self._answer)


@pytest.fixture(autouse=True)
def nodes_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself takes only its own kind of names."""
    monkeypatch.setattr(scheduling_strategies, "NodeAffinitySchedulingStrategy", On)


class On:
    def __init__(self, node_id: str, soft: bool) -> None:
        assert not soft
        self.node_id = node_id


def placed(ray: FakeRay, workers: int, looks: int = 1, sending: Sending = SENDING) -> Pool:
    """A pool that has looked at the nodes, its workers started."""
    made: list[Pool] = []

    async def run() -> None:
        pool = Pool(ray, Place({}, (), "/"), sending, workers, 2, lambda: None)
        made.append(pool)
        pool.give(b"")
        for _ in range(looks):
            await pool.look()
            await asyncio.sleep(0.05)

    asyncio.run(run())
    return made[0]


def test_the_machine_that_trains_is_left_alone() -> None:
    ray = FakeRay(head=16, a=4, b=4)
    placed(ray, 6)
    assert Counter(ray.placed) == {"a": 3, "b": 3}


def test_no_more_workers_than_cores() -> None:
    ray = FakeRay(head=16, a=1, b=3)
    pool = placed(ray, 12)
    assert Counter(ray.placed) == {"a": 1, "b": 3}
    assert sentence(pool.shown()) == "4 workers on 2 nodes (1 + 3)"


def test_workers_that_start_are_left_to_start_while_more_are_wanted() -> None:
    ray = FakeRay(head=1, a=4)
    pools: list[Pool] = []

    async def run() -> None:
        pool = Pool(ray, Place({}, (), "/"), SENDING, 1, 2, lambda: None)
        pools.append(pool)
        pool.give(b"")
        await pool.look()
        first = pool.workers[0]
        for pool.wanted in (3, 4, 2, 4):
            pool.arrange()
        assert first in pool.workers
        await asyncio.sleep(0.05)
        assert len(pool.ready) == 4
        pool.wanted = 1
        pool.arrange()
        assert len(pool.ready) == len(pool.workers) == 1

    asyncio.run(run())
    assert len(ray.placed) == 6


def test_a_machine_alone_works_itself() -> None:
    ray = FakeRay(head=2)
    assert sentence(placed(ray, 2).shown()) == "2 workers on one node"


def test_other_versions_are_left_out() -> None:
    ray = FakeRay(head=1, a=2, b=2)
    ray.greetings["a"] = {**GREETING, "differs": "torch 2.14.0 instead of 2.15.0"}
    pool = placed(ray, 4, looks=2)
    assert sentence(pool.shown()) == "2 workers on one node; node 2 is left out: it has torch 2.14.0 instead of 2.15.0"
    assert pool.hopeless is None
    ray.greetings["b"] = ray.greetings["a"]
    pool = placed(ray, 4)
    assert pool.hopeless == (
        "No node can work for the loader. 10.0.0.1: it has torch 2.14.0 instead of 2.15.0; "
        "10.0.0.2: it has torch 2.14.0 instead of 2.15.0"
    )


def test_little_shared_memory_is_told_with_the_remedy() -> None:
    ray = FakeRay(head=1, a=2)
    ray.greetings["a"] = {**GREETING, "shared_memory": 64 << 20}
    told = sentence(placed(ray, 1).shown())
    assert "node 2: its /dev/shm has 64 MB" in told
    assert "--shm-size" in told


def test_a_node_where_nothing_starts_is_left_out_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "LOOKS_AGAIN", 0.0)
    monkeypatch.setattr(pool_module, "TRIES", 2)
    ray = FakeRay(head=1, a=1, b=1)
    ray.greetings["a"] = FakeRay.exceptions.RayTaskError("Traceback\nModuleNotFoundError: No module named 'mydata'")
    pool = placed(ray, 2, looks=4)
    shown = {node.address: node for node in pool.shown()}
    assert shown["10.0.0.1"].reason == "ModuleNotFoundError: No module named 'mydata'"
    assert shown["10.0.0.2"].workers == 1
    assert ray.placed.count("a") == 2


def test_files_are_sent_to_nodes_that_do_not_see_them() -> None:
    ray = FakeRay(head=1, a=1, b=1)
    ray.greetings["b"] = {**GREETING, "sees_files": False}
    pool = placed(ray, 2)
    assert {node.address: node.is_sent_files for node in pool.shown()} == {
        "10.0.0.0": False, "10.0.0.1": False, "10.0.0.2": True,
    }  # fmt: skip
    assert sentence(pool.shown()).endswith("node 3: the files are sent to it with each batch")
    blind = next(worker for worker in pool.workers if worker.node == "b")
    assert not pool.can_take(blind, Work(b""))
    assert pool.can_take(blind, Work(b"", b"rows"))


def test_where_they_cannot_be_sent_such_a_node_is_left_out() -> None:
    ray = FakeRay(head=1, a=1, b=1)
    ray.greetings["b"] = {**GREETING, "sees_files": False}
    pool = placed(ray, 2, sending=Sending(always=False, refusal="share the folder"))
    assert pool.nodes["b"].reason == "it does not see the data set's files; share the folder"
    assert [worker.node for worker in pool.workers] == ["a"]
    assert all(not node.is_sent_files for node in pool.shown())


def test_a_slot_for_nodes_that_see_the_files_is_not_kept_waiting_when_there_are_none() -> None:
    """It was taken before; those that are left cannot compute it."""
    ray = FakeRay(head=1, a=1, b=1)
    ray.greetings["b"] = {**GREETING, "sees_files": False}
    failed: list[tuple[int, str]] = []

    async def run() -> None:
        dispatch = Dispatch(lambda *_: None, lambda _run, number, why: failed.append((number, why)))
        pool = dispatch.pool = Pool(ray, Place({}, (), "/"), SENDING, 2, 2, dispatch.match)
        pool.give(b"")
        await pool.look()
        await asyncio.sleep(0.05)
        dispatch.begin(1)
        del ray.cores["a"]
        await pool.look()
        dispatch.take(1, 7, Work(b"slot"))
        await asyncio.sleep(0.05)

    asyncio.run(run())
    assert failed == [(7, "The nodes that see the data set's files are gone")]


WITHOUT_PACKAGE = """
import pickle, sys
sys.modules["kernel_monitor"] = None  # it cannot be imported
kind, place = pickle.loads(sys.stdin.buffer.read())
print(kind(b"", 1, 0, 1, place).hello()["differs"])
"""


def test_a_node_without_this_package_can_say_so(tmp_path: Path) -> None:
    """What it is sent must not need the package to be understood."""
    file = tmp_path / "a.jpg"
    file.write_bytes(b"content")
    (probe,) = probes([str(file)])
    place = Place(versions(), (), str(tmp_path), ((probe.path, probe.size, probe.digest),))
    cloudpickle.register_pickle_by_value(node_worker)
    try:
        sent = cloudpickle.dumps((NodeWorker, place))
    finally:
        cloudpickle.unregister_pickle_by_value(node_worker)
    command = [sys.executable, "-c", WITHOUT_PACKAGE]
    found = subprocess.run(command, input=sent, capture_output=True, check=False, cwd=tmp_path)
    assert found.stdout.decode().strip() == f"kernel-monitor none instead of {versions()['kernel-monitor']}", (
        found.stderr
    )


def test_batches_with_large_files_are_few_at_once() -> None:
    """They lie in an object store, too, of which at most half is used."""
    dispatch = Dispatch(lambda *_: None, lambda *_: None)
    dispatch.pool = placed(FakeRay(head=1, a=1), 1)  # with stores of 4 GB
    assert dispatch._limit() == 64
    dispatch.pool.sent_bytes = 200e6
    assert dispatch._limit() == 10


def test_what_is_not_known_yet_is_no_refusal() -> None:
    """Right after joining: no node yet, then one whose cores are not known, then they are."""
    ray = FakeRay()
    pools: list[Pool] = []

    async def run() -> None:
        pool = Pool(ray, Place({}, (), "/"), SENDING, 1, 2, lambda: None)
        pools.append(pool)
        pool.give(b"")
        for cores in (None, 0, 2):
            assert pool.hopeless is None
            assert not pool.ready
            ray.cores = {} if cores is None else {"head": cores}
            await pool.look()
            await asyncio.sleep(0.05)
        assert len(pool.ready) == 1
        ray.cores = {}
        await pool.look()
        assert pool.hopeless == "Ray on this machine has ended."

    asyncio.run(run())


def test_a_worker_that_starts_is_left_to_start_and_one_without_a_core_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes minutes to import torch; others' jobs may have the cores of one node, not of the other."""
    monkeypatch.setattr(pool_module, "MOVES_AFTER", 0.1)
    ray = FakeRay(head=1, a=1)
    ray.begins["a"] = False

    async def run() -> None:
        pool = Pool(ray, Place({}, (), "/"), SENDING, 1, 2, lambda: None)
        pool.give(b"")
        await pool.look()
        await asyncio.sleep(0.5)
        await pool.look()
        assert ray.placed == ["a"]  # waited for, as there is no other
        assert pool.hopeless is None
        ray.cores["b"] = 1
        ray.greetings["b"] = None  # no answer yet
        await pool.look()
        await asyncio.sleep(0.5)
        for _ in range(5):
            await pool.look()
            await asyncio.sleep(0.2)
        assert ray.placed == ["a", "b"]
        assert [worker.begun for worker in pool.workers] == [True]

    asyncio.run(run())
