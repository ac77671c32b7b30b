"""Every request is answered, once, with what can be encoded: whatever it holds, and whatever the work on it does."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from kernel_monitor.control import Control
from kernel_monitor.protocol.message_types import PROTOCOL
from kernel_monitor.runtime import Monitor
from kernel_monitor.stream import hub as wire

from ..waiting import until

DEEP: Any = []
for _ in range(sys.getrecursionlimit() + 100):
    DEEP = [DEEP]

HOSTILE: list[Any] = [
    None, True, 0, -1, 1 << 80, 1e308, float("nan"), "", "x" * 100_000, "half \ud800", "\udcff", "\x00",
    "\x1b[2J\u202e", "__class__", "../../etc/passwd", [], {}, {"a": {"b": []}}, ["\ud800"], DEEP,
]  # fmt: skip
FIELDS = (
    "client", "loader", "backend", "label", "since", "steps", "seconds", "confirmed", "cancel", "workers", "interval",
    "history", "charts", "price", "path", "recorded", "touch", "page",
)  # fmt: skip


class Answered:
    """The replies to one request."""

    def __init__(self, control: Control, content: Any) -> None:
        self.replies: list[dict[str, Any]] = []
        self._came = threading.Event()
        control.handle(content, self._reply)

    def _reply(self, content: Mapping[str, Any], buffers: list[bytes]) -> None:
        # As Jupyter encodes it, but that what is not UTF-8 is an error.
        json.dumps(content, ensure_ascii=False, default=float).encode()
        assert all(isinstance(one, bytes | bytearray | memoryview) for one in buffers)
        self.replies.append(dict(content))
        self._came.set()

    def one(self) -> dict[str, Any]:
        assert self._came.wait(20), "no answer"
        (reply,) = self.replies
        assert reply["status"] in ("ok", "error")
        if reply["status"] == "error":
            assert reply["error"]
            assert 0 < len(reply["message"]) <= wire.MAX_ERROR
        return reply


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitor]:
    one = Monitor()
    one.start(interval=0.05, record=tmp_path_factory.mktemp("record"))
    until(lambda: one.store.last_seq > 0)
    yield one
    one.stop()


def request(command: Any, args: Any, protocol: Any = PROTOCOL) -> dict[str, Any]:
    return {"protocol": protocol, "command": command, "args": args}


def test_hostile_requests_are_answered(monitor: Monitor) -> None:
    control = Control(monitor)
    # These take no arguments, and long.
    commands = sorted({*control._quick, *control._slow} - {"document", "bokehjs", "export", "stop"})
    count = 0
    for value in HOSTILE:
        for content in (value, request(value, {}), request("hello", value), request("subscribe", {}, value)):
            Answered(control, content).one()
            count += 1
        for command in commands:
            for args in (dict.fromkeys(FIELDS, value), *({field: value} for field in FIELDS)):
                Answered(control, request(command, args)).one()
                count += 1
    assert count > 5000
    for command in ("subscribe", "history", "glance"):
        assert Answered(control, request(command, {"client": "page"})).one()["status"] == "ok", command


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError


RAISED = [
    ValueError("half \ud800 \x1b[2J"),
    ValueError(),
    ValueError("x" * 1_000_000),
    Wordless(),
    SystemExit(3),
    GeneratorExit(),
    RecursionError(),
    type("Odd\u202eName", (Exception,), {})("odd"),
]


@pytest.mark.parametrize("kind", ["_quick", "_slow"])
@pytest.mark.parametrize("raised", RAISED, ids=lambda one: type(one).__name__.encode("ascii", "replace").decode())
def test_a_handler_that_raises_is_answered(monitor: Monitor, kind: str, raised: BaseException) -> None:
    control = Control(monitor)

    def fail(_args: Any) -> Any:
        raise raised

    getattr(control, kind)["fail"] = fail
    reply = Answered(control, request("fail", {})).one()
    assert reply["status"] == "error"
    assert not {"\u202e", "\x1b", "\ud800"} & {*reply["error"], *reply["message"]}


def test_an_interrupt_is_answered_and_goes_on(monitor: Monitor) -> None:
    control = Control(monitor)

    def fail(_args: Any) -> Any:
        raise KeyboardInterrupt

    control._quick["fail"] = fail
    replies: list[dict[str, Any]] = []
    with pytest.raises(KeyboardInterrupt):
        control.handle(request("fail", {}), lambda content, _buffers: replies.append(dict(content)))
    assert [reply["error"] for reply in replies] == ["KeyboardInterrupt"]


@pytest.mark.parametrize("kind", ["_quick", "_slow"])
@pytest.mark.parametrize("answer", [object(), {1, 2}, b"bytes", DEEP], ids=["object", "set", "bytes", "deep"])
def test_an_answer_that_cannot_be_encoded_is_an_error(monitor: Monitor, kind: str, answer: Any) -> None:
    control = Control(monitor)
    getattr(control, kind)["odd"] = lambda _args: ({"status": "ok", "answer": answer}, [])
    reply = Answered(control, request("odd", {})).one()
    assert reply["status"] == "error"
    assert reply["message"].startswith("The answer cannot be sent: ")


def test_text_that_cannot_be_encoded_is_escaped_and_numbers_of_numpy_stay(monitor: Monitor) -> None:
    control = Control(monitor)
    control._quick["odd"] = lambda _args: ({"status": "ok", "path": "caf\udce9.jpg", "number": np.int64(3)}, [])
    reply = Answered(control, request("odd", {})).one()
    assert (reply["path"], reply["number"]) == ("caf\\xe9.jpg", 3)


def test_no_thread_for_a_slow_request_is_an_error(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    control = Control(monitor)
    monkeypatch.setattr(threading.Thread, "start", no_more)
    assert Answered(control, request("sessions", {})).one()["message"] == "can't start new thread"
