"""Loaders that can be swapped in the middle of an epoch: one plan, several engines.

`switchable` wraps a DataLoader; `live` and `listen` are what a monitor needs to show the wrapped loaders.
"""

from __future__ import annotations

from .engines.backends import Backend
from .events import listen
from .loader import SwitchableLoader, switchable
from .meter import Totals
from .parity import Parity
from .plan import Fallback
from .registry import live
from .state import EpochCounts, LoaderState
from .switch import Switch

__all__ = [
    "Backend",
    "EpochCounts",
    "Fallback",
    "LoaderState",
    "Parity",
    "Switch",
    "SwitchableLoader",
    "Totals",
    "listen",
    "live",
    "switchable",
]
