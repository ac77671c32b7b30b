"""The entry in the kernel's list of comms by which pages know that the extension is loaded."""

from __future__ import annotations

from typing import Any

from comm import get_comm_manager

from kernel_monitor.protocol.message_types import TARGET
from kernel_monitor.stream.jupyter import Presence


def test_a_page_cannot_take_it_away() -> None:
    manager, presence = get_comm_manager(), Presence()
    entry: Any = presence
    manager.register_comm(entry)
    stream: Any = None
    manager.comm_close(stream, "", {"content": {"comm_id": presence.comm_id}})
    assert manager.comms[presence.comm_id] is entry
    assert entry.target_name == TARGET
    manager.unregister_comm(entry)
    assert presence.comm_id not in manager.comms
