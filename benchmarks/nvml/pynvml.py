"""Stands in for pynvml where its directory comes first on PYTHONPATH: the GPUs of `KERNEL_MONITOR_FAKE_NVML`.

Constants, structures and errors are those of the real module, which has to be installed; functions that are not
simulated are the real ones, too. See `simulated.machine` for the options.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOT = str(_HERE.parents[1])


def _load_real() -> dict[str, object]:
    """Everything in the real module, which is loaded under the name `nvidia_pynvml`."""
    elsewhere = [path for path in sys.path if Path(path or ".").resolve() != _HERE]
    found = importlib.machinery.PathFinder.find_spec("pynvml", elsewhere)
    spec = importlib.util.spec_from_file_location("nvidia_pynvml", found.origin) if found else None
    if spec is None or spec.loader is None:
        raise ImportError("the stand-in for pynvml needs the package nvidia-ml-py: pip install nvidia-ml-py")
    real = sys.modules["nvidia_pynvml"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(real)
    if _ROOT not in sys.path:
        sys.path.append(_ROOT)
    from benchmarks.nvml import answers, simulated

    for name, function in answers.functions(real, simulated.machine(real)).items():
        setattr(real, name, function)
    return {name: value for name, value in vars(real).items() if not name.startswith("__")}


globals().update(_load_real())
