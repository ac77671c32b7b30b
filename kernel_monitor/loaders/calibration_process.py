"""`python -P calibration_process.py PARENT`: the processor time that DALI takes for some of the user's images.

Reads the pickled arguments of `measure` from stdin and writes its result as a line of JSON to stdout. Runs beside the
training: at low priority, on one thread, with at most `CPU_LIMIT_S` of processor time, and never longer than its parent
process.

Neither torch nor torchvision is imported, which alone would take 3 to 5 s of processor time. The package
`kernel_monitor.loaders` imports both; its modules for DALI do not.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import pickle
import resource
import signal
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

NICENESS = 13  # beside a training thread that wants the same core, this process gets a twentieth of it (sched(7))
CPU_LIMIT_S = 5  # the system kills the process that takes more
CPU_BUDGET_S = 3.0  # from then on no further images are measured
PASSES = 3  # over the files, with the same random parameters
GROUPS = 8  # runs that the files are shared out to, at least: their spread is the error of the mean
FEWEST = 4  # files that DALI must be able to read
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_OUT_OF_MEMORY_FIRST = b"1000"


def main() -> None:
    _step_back(int(sys.argv[1]))
    without_torch()
    try:
        result = measure(*pickle.load(sys.stdin.buffer))  # noqa: S301 - written by the parent process
    except Exception as error:  # noqa: BLE001 - DALI's own: the loader shows it
        from kernel_monitor.loaders.engines.dali_graph import explained

        result = {"reason": f"DALI failed: {explained(error)}"}
    sys.stdout.write(f"\n{json.dumps(result)}\n")
    sys.stdout.flush()
    os._exit(0)  # to take DALI to pieces costs another 0.1 s


def _step_back(parent: int) -> None:
    """Give way to the training in everything, and end with the process that it runs in."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # it has ended meanwhile
        os._exit(1)
    # Where memory runs out, the system is to end this process and not the training.
    Path("/proc/self/oom_score_adj").write_bytes(_OUT_OF_MEMORY_FIRST)


def without_torch() -> None:
    """Let modules of `kernel_monitor.loaders` be imported without running its `__init__`, which imports torch."""
    folder = Path(__file__).resolve().parent
    sys.path.append(str(folder.parents[1]))
    package = ModuleType("kernel_monitor.loaders")
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package


def measure(program: Any, files: list[Any], fused: bool) -> dict[str, Any]:
    """Run files, given by paths from the root or as encoded bytes, through a `transforms.program.Program`.

    Returns `files` that were measured, CPU `seconds` per image with the 95 % half-width `error` of that mean over
    files; or `reason`, why nothing could be measured.
    """
    import numpy as np

    from kernel_monitor.loaders.data.file_check import FileTable, check_bytes
    from kernel_monitor.loaders.engines import dali_graph
    from kernel_monitor.loaders.transforms.params import sample_keys
    from kernel_monitor.loaders.transforms.program import arrays

    table = FileTable(len(files))
    encoded = bool(files) and isinstance(files[0], bytes)
    facts = [check_bytes(file) if isinstance(file, bytes) else table.check(k, file) for k, file in enumerate(files)]
    good = [k for k, fact in enumerate(facts) if fact.reason is None and isinstance(files[k], type(files[0]))]
    if len(good) < max(FEWEST, len(files) // 2):
        first = next((f": {fact.reason}" for fact in facts if fact.reason is not None), "")
        return {"reason": f"DALI can read {len(good)} of {len(files)} files{first}"}
    size = max(1, len(good) // GROUPS)
    work = dali_graph.Translated(program, fused=fused)
    pipeline = work.build(batch_size=size, threads=1, device=None, encoded=encoded)

    def seconds(group: list[int]) -> float:
        """CPU time of one run, s."""
        began = time.process_time()
        keys = sample_keys(0, 0, group, [0] * len(group))
        heights, widths = (np.array([getattr(facts[k], side) for k in group]) for side in ("height", "width"))
        contents = [files[k] if encoded else os.fsencode(files[k]) for k in group]
        dali_graph.feed(pipeline, contents, arrays(program, keys, heights, widths), encoded=encoded)
        pipeline.run()
        return time.process_time() - began

    groups = [good[first : first + size] for first in range(0, len(good) - size + 1, size)]
    seconds(groups[-1])  # memory is allocated
    found: list[list[float]] = [[] for _ in groups]
    for turn in range(PASSES):
        for number, group in enumerate(groups):
            if time.process_time() < CPU_BUDGET_S or (number < 2 and turn == 0):
                found[number].append(seconds(group) / len(group))
    # The least of the passes: a process that gives way to others loses its caches, which only ever adds to the time.
    least = [min(values) for values in found if values]
    return {"files": size * len(least), "seconds": statistics.mean(least), "error": _half_width(least)}


def _half_width(means: list[float]) -> float:
    """Half of the 95 % interval of the mean of some groups' means, with Student's t (Abramowitz and Stegun, 26.7)."""
    if len(means) < 2:
        return means[0]
    return (1.96 + 3.27 / (len(means) - 1)) * statistics.stdev(means) / math.sqrt(len(means))


if __name__ == "__main__":
    main()
