"""A simulated machine: the files under /proc and /sys that the sampler reads, of a host with many cores.

    python -m benchmarks.fakehost DIR [--cores 256] [--sockets 4] [--seed 0]

writes them under DIR and updates them in real time, ten times a second, until its stdin ends. A sampler that is started
with `KERNEL_MONITOR_ROOT=DIR` samples that machine. The load moves in waves from socket to socket, the same for the
same seed. The files have the format that Linux documents (filesystems/proc.rst, accounting/psi.rst, ABI/).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TICKS_PER_S = 100  # USER_HZ
PAGE_B = 4096
SECTOR_B = 512
MEMORY_KB = 2 << 30
SWAP_KB = 64 << 20
INTERRUPTS = 2000  # numbers in the line `intr`; as many as a large server has


class FakeHost:
    """The files of a host; `tick` advances its counters.

    Args:
        directory: the folder in which `proc` and `sys` are made.
        sockets: number of sockets; each is a NUMA node with an equal share of the cores, numbered in blocks.
        cores: number of logical cores.
        seed: the seed of the load's waves.
    """

    def __init__(self, directory: Path, sockets: int = 4, cores: int = 256, seed: int = 0) -> None:
        if cores % sockets:
            raise ValueError(f"{cores} cores do not spread evenly over {sockets} sockets")
        self.directory = Path(directory)
        self.cores = cores
        self.sockets = sockets
        draw = random.Random(seed)
        self._phases = [draw.uniform(0.0, 1.0) for _ in range(cores)]
        self._time = 0.0
        self._second = -1  # the last one in which the frequencies were written
        self._offline: set[int] = set()
        # user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice: in ticks
        self._ticks = [[draw.uniform(1e4, 1e6) for _ in range(8)] + [0.0, 0.0] for _ in range(cores)]
        self._counters = dict.fromkeys(("read", "write", "io_ms", "received", "sent", "in", "out"), 1e6)
        self._stalled_us = {"cpu": 0.0, "memory": 0.0, "io": 0.0}
        self._still()
        self.tick(0.0)

    def tick(self, seconds: float) -> None:
        """Advance the counters by that much time."""
        self._time += seconds
        for core in range(self.cores):
            if core not in self._offline:
                self._run(core, seconds)
        load = sum(self.share(core) for core in range(self.cores)) / self.cores
        for name, rate in (
            ("read", 2e9 * load / SECTOR_B),
            ("write", 5e8 * load / SECTOR_B),
            ("io_ms", 1000.0 * load),
            ("received", 1e9 * load),
            ("sent", 2e8 * load),
            ("in", 100.0 * load),
            ("out", 10.0 * load),
        ):
            self._counters[name] += rate * seconds
        for name, share in (("cpu", 0.3), ("memory", 0.02), ("io", 0.1)):
            self._stalled_us[name] += 1e6 * share * load * seconds
        self._moving(load)

    def share(self, core: int) -> float:
        """Return a core's present load, 0 to 1: the sum of a wave through the sockets and one of the core's own."""
        socket = core * self.sockets // self.cores
        wave = math.sin(2 * math.pi * (self._time / 40.0 - socket / self.sockets))
        own = math.sin(2 * math.pi * (self._time / 7.0 + self._phases[core]))
        return min(1.0, max(0.0, 0.5 + 0.35 * wave + 0.2 * own))

    def offline(self, core: int) -> None:
        """Take a core offline, as `echo 0 > /sys/devices/system/cpu/cpu<core>/online` does."""
        self._offline.add(core)
        self._still()
        self.tick(0.0)

    def online(self, core: int) -> None:
        """Bring a core back online; its counters go on from their last values."""
        self._offline.discard(core)
        self._still()
        self.tick(0.0)

    def _run(self, core: int, seconds: float) -> None:
        busy, ticks = self.share(core), seconds * TICKS_PER_S
        waiting = 0.05 * (1 - busy)
        for field, part in ((0, 0.8), (1, 0.01), (2, 0.15), (5, 0.01), (6, 0.02), (7, 0.01)):
            self._ticks[core][field] += ticks * busy * part
        self._ticks[core][3] += ticks * (1 - busy - waiting)
        self._ticks[core][4] += ticks * waiting

    def _still(self) -> None:
        """Write the files that do not change by themselves."""
        online = [core for core in range(self.cores) if core not in self._offline]
        system = "sys/devices/system"
        self._write(f"{system}/cpu/possible", f"0-{self.cores - 1}\n")
        self._write(f"{system}/cpu/present", f"0-{self.cores - 1}\n")
        self._write(f"{system}/cpu/online", ranges(online) + "\n")
        self._write(f"{system}/node/online", f"0-{self.sockets - 1}\n")
        for socket in range(self.sockets):
            own = [core for core in online if core * self.sockets // self.cores == socket]
            self._write(f"{system}/node/node{socket}/cpulist", ranges(own) + "\n")
        for core in range(self.cores):
            folder = f"{system}/cpu/cpu{core}"
            self._write(f"{folder}/online", f"{int(core not in self._offline)}\n")
            for name, text in (
                ("topology/physical_package_id", f"{core * self.sockets // self.cores}\n"),
                ("topology/core_id", f"{core // 2}\n"),
            ):
                if core in self._offline:
                    (self.directory / folder / name).unlink(missing_ok=True)
                else:
                    self._write(f"{folder}/{name}", text)
        self._write("sys/block/nvme0n1/device/model", "simulated\n")
        self._write("sys/block/nvme0n1/queue/hw_sector_size", f"{SECTOR_B}\n")
        self._write("sys/class/net/eth0/device/vendor", "0x15b3\n")
        self._write("proc/cpuinfo", "".join(f"processor\t: {core}\nmodel name\t: Simulated CPU\n\n" for core in online))
        self._write("proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t0-{self.cores - 1}\n")
        self._write("proc/version", "Linux version 6.8.0 (simulated)\n")

    def _moving(self, load: float) -> None:
        online = [core for core in range(self.cores) if core not in self._offline]
        ticks = [[int(value) for value in self._ticks[core]] for core in online]
        whole = " ".join(str(sum(column)) for column in zip(*ticks, strict=True))
        lines = [f"cpu{core} {' '.join(map(str, values))}" for core, values in zip(online, ticks, strict=True)]
        running = max(1, round(load * self.cores))
        self._write(
            "proc/stat",
            f"cpu  {whole}\n" + "\n".join(lines) + f"\nintr 1000000{' 17' * INTERRUPTS}\n"
            f"ctxt 100000\nbtime 1790000000\nprocesses 5000\nprocs_running {running}\nprocs_blocked 0\n",
        )
        second = int(self._time)
        for core in online if second != self._second else []:
            frequency = round(1_500_000 + 2_000_000 * self.share(core))
            self._write(f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", f"{frequency}\n")
        self._second = second
        free = round(MEMORY_KB * (0.8 - 0.5 * load))
        self._write(
            "proc/meminfo",
            f"MemTotal: {MEMORY_KB} kB\nMemFree: {free // 2} kB\nMemAvailable: {free} kB\nBuffers: 100000 kB\n"
            f"Cached: {free // 4} kB\nSwapCached: 0 kB\nActive: 1000000 kB\nInactive: 1000000 kB\n"
            f"SwapTotal: {SWAP_KB} kB\nSwapFree: {SWAP_KB - 1000} kB\nShmem: 1000 kB\nSlab: 500000 kB\n"
            "SReclaimable: 300000 kB\n",
        )
        count = {name: int(value) for name, value in self._counters.items()}
        self._write("proc/vmstat", f"pgpgin 1\npgpgout 1\npswpin {count['in']}\npswpout {count['out']}\n")
        self._write(
            "proc/diskstats",
            f" 259       0 nvme0n1 1000 0 {count['read']} 500 1000 0 {count['write']} 500 0 {count['io_ms']} 1000"
            " 0 0 0 0 0 0\n",
        )
        self._write(
            "proc/net/dev",
            "Inter-|   Receive                                                |  Transmit\n"
            " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls"
            " carrier compressed\n"
            "    lo: 1000 10 0 0 0 0 0 0 1000 10 0 0 0 0 0 0\n"
            f"  eth0: {count['received']} 1000 0 0 0 0 0 0 {count['sent']} 1000 0 0 0 0 0 0\n",
        )
        mean = load * self.cores
        self._write("proc/loadavg", f"{mean:.2f} {mean:.2f} {mean:.2f} {running}/4000 4242\n")
        for name, stalled in self._stalled_us.items():
            some, full = int(stalled), 0 if name == "cpu" else int(stalled / 2)
            self._write(
                f"proc/pressure/{name}",
                f"some avg10=0.00 avg60=0.00 avg300=0.00 total={some}\n"
                f"full avg10=0.00 avg60=0.00 avg300=0.00 total={full}\n",
            )

    def _write(self, name: str, text: str) -> None:
        """Write a file in place and in one call, because a probe may keep it open."""
        file = self.directory / name
        data = text.encode()
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            return
        with file.open("r+b", buffering=0) as opened:
            opened.write(data)
            opened.truncate(len(data))


@contextmanager
def simulation(directory: Path, gpus: int = 8, cores: int = 256, sockets: int = 4) -> Iterator[dict[str, str]]:
    """Run such a host with simulated GPUs in a process of its own; yield the environment for its sampler."""
    command = [sys.executable, "-m", "benchmarks.fakehost", str(directory), f"--cores={cores}", f"--sockets={sockets}"]
    root = Path(__file__).resolve().parents[1]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as host:
        try:
            if host.stdout is None or host.stdout.readline() != b"ready\n":
                raise RuntimeError("the simulated host did not start")
            before = os.environ.get("PYTHONPATH")
            shadow = str(root / "benchmarks" / "nvml")  # its pynvml.py is found before the real one
            yield {
                "KERNEL_MONITOR_ROOT": str(directory),
                "KERNEL_MONITOR_FAKE_NVML": json.dumps({"gpus": gpus}),
                "PYTHONPATH": f"{shadow}{os.pathsep}{before}" if before else shadow,
            }
        finally:
            if host.stdin is not None:
                host.stdin.close()
            host.wait(10)


def ranges(numbers: list[int]) -> str:
    """Return a list of cores in the notation of sysfs: `0-3,8`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def main() -> None:
    """Write the files and update them until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fakehost", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--cores", type=int, default=256)
    parser.add_argument("--sockets", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    host = FakeHost(options.directory, options.sockets, options.cores, options.seed)
    print("ready", flush=True)
    last = time.monotonic()
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        now = time.monotonic()
        host.tick(now - last)
        last = now


if __name__ == "__main__":
    main()
