"""Loaders that can be swapped in the middle of an epoch: one plan, several engines.

`switchable` wraps a DataLoader; `live` and `listen` are what a monitor needs to show the wrapped loaders.

Internal but for the names in docs/interface.md.
"""

from __future__ import annotations

from ..steps.step_meter import Totals
from .calibration import stop_calibrations
from .data.layouts import ImageFiles
from .data.tar_shards import TarShards
from .engines.backends import Backend
from .engines.dali_graph import Sample as DaliSample
from .engines.engine import Knobs
from .events import listen
from .loader import SwitchableLoader
from .parity import Parity
from .plan import Fallback, Skipped
from .switchable import switchable
from .switching.switch import Click, Switch
from .takeover import AnyLoader, Takeover, live

__all__ = [
    "AnyLoader",
    "Backend",
    "Click",
    "DaliSample",
    "Fallback",
    "ImageFiles",
    "Knobs",
    "Parity",
    "Skipped",
    "Switch",
    "SwitchableLoader",
    "Takeover",
    "TarShards",
    "Totals",
    "listen",
    "live",
    "stop_calibrations",
    "switchable",
]
