"""From the store to the pages of this kernel: wire format, hub, control channel, rendering processes."""

from __future__ import annotations

from .hub import Hub, Publisher
from .wire import PROTOCOL

__all__ = ["PROTOCOL", "Hub", "Publisher"]
