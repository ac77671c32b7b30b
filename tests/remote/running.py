"""A Ray cluster on this machine for as long as it is wanted, in a process of its own; for tests and benchmarks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import psutil


class RunningCluster:
    """The cluster of `cluster.py` and its process."""

    def __init__(self, nodes: int = 2, cores: int = 2, head: int = 1, store: int = 100) -> None:
        self._size = nodes, cores, head, store
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.remote.cluster", *map(str, self._size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        told = self._answer()
        self.address: str = told["address"]
        self.head: str = told["head"]
        self.nodes: list[str] = told["nodes"]

    def add(self) -> str:
        """Add a node; returns its id."""
        self._say("add")
        self.nodes.append(str(self._answer()))
        return self.nodes[-1]

    def remove(self, node: str) -> None:
        """Let a node vanish without warning."""
        self._say(f"remove {node}")
        self._answer()
        self.nodes.remove(node)

    def restore(self) -> list[str]:
        """Replace the nodes that have died by themselves, which happens on a busy machine; returns their ids.

        No node outlives its head: where that has died, it is another cluster, at another address.
        """
        died = [self.head]
        if self.process.poll() is None:
            self._say("died")
            died = [str(node) for node in self._answer()]
        if self.head in died:
            self.stop()
            self._start()
            return died
        for node in died:
            self.remove(node)
            self.add()
        return died

    def hide(self, folder: str) -> None:
        """Let nodes that are added from now on not see a folder."""
        self._say(f"hide {folder}")
        self._answer()

    def processes(self) -> list[psutil.Process]:
        """All processes of the cluster."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def workers(self) -> list[psutil.Process]:
        """The processes that run a worker of ours."""
        return [process for process in self.processes() if command(process).startswith("ray::NodeWorker")]

    def kill_worker(self, which: int = 0) -> None:
        workers = self.workers()
        if workers:
            os.kill(workers[which % len(workers)].pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the nodes, by their own process numbers where they do not end by themselves."""
        processes = self.processes() if self.process.poll() is None else []
        try:
            self._say("stop")
            self.process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        for process in processes:
            if process.is_running():
                process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the cluster has not started"
        return json.loads(line)


def command(process: psutil.Process) -> str:
    """The command line of a process; empty where it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
