"""Loaders that can be swapped in the middle of an epoch: one plan, several engines.

`switchable` wraps a DataLoader; `live` and `listen` are what a monitor needs to show the wrapped loaders.
"""

from __future__ import annotations

from ..steps.meter import Totals
from .data.image_files import ImageFiles
from .engines.backends import Backend
from .engines.own_pipeline import Sample as DaliSample
from .events import listen
from .knobs import Knobs
from .loader import SwitchableLoader
from .parity import Parity
from .plan import Fallback, Skipped
from .registry import live
from .state import EpochCounts, LoaderState
from .switch import Click, Switch
from .wrap import switchable

__all__ = [
    "Backend",
    "Click",
    "DaliSample",
    "EpochCounts",
    "Fallback",
    "ImageFiles",
    "Knobs",
    "LoaderState",
    "Parity",
    "Skipped",
    "Switch",
    "SwitchableLoader",
    "Totals",
    "listen",
    "live",
    "switchable",
]
