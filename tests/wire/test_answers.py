"""Every request is answered, once, with what can be encoded: whatever it holds, and whatever the work on it does."""

from __future__ import annotations

import json
import queue
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_monitor.control import SLOW, Control
from kernel_monitor.errors import MonitorError
from kernel_monitor.field_checks import fields
from kernel_monitor.protocol.message_types import PROTOCOL, REPLY, REQUEST
from kernel_monitor.runtime import Monitor
from kernel_monitor.stream import hub as wire
from kernel_monitor.stream.widget_pages import WidgetPages

from ..waiting import until


def _nested(times: int) -> Any:
    value: Any = []
    for _ in range(times):
        value = [value]
    return value


DEEP = _nested(sys.getrecursionlimit() + 100)
DEEPEST = _nested(200_000)  # Python goes no deeper: until 3.13 as its limit says, then as its stack allows

HOSTILE: list[Any] = [
    None, True, 0, -1, 1 << 70, 10**400, 1e300, -1e300, float("nan"), float("inf"), "", "x" * 10_000, "half \ud800",
    "\udcff", "\x00", "\x1b[2J\u202e", "__class__", "../../etc/passwd", "+1" * 2000, "1" + " " * 4000 + "z" * 9, [], {},
    {"a": {"b": []}}, dict.fromkeys(map(str, range(5000))), ["\ud800"], ["x" * 10_000] * 5000, _nested(1000), DEEP,
]  # fmt: skip
LOADER = "odd"
SETTINGS = {
    "interval": 0.05, "history": 60, "charts": ["cpu"], "record": False, "price": "2 €", "unfolded": ["node-1"]
}  # fmt: skip
VALID: dict[str, dict[str, Any]] = {
    "hello": {},
    "subscribe": {"client": "page", "touch": True, "bundled": True},
    "glance": {"client": "page", "touch": True},
    "unsubscribe": {"client": "page"},
    "sidebar": {"page": "page"},
    "history": {"since": 3},
    "switch": {"loader": LOADER, "backend": "torchvision", "confirmed": True},
    "decline": {"loader": LOADER},
    "set": {"loader": LOADER, "workers": 0, "prefetch": 2, "threads": 1},
    "diagnose": {"loader": "nobody's", "seconds": 8, "confirmed": False, "cancel": False},
    "tune": {"loader": "nobody's", "seconds": 60.0, "cancel": False, "undo": False},
    "mark": {"label": "a mark"},
    "start": SETTINGS,
    "configure": SETTINGS,
    "open": {"path": "nowhere"},
    "code": {"loader": "nobody's"},
    "profile": {"loader": "nobody's", "steps": 1},
    **{command: {} for command in ("stop", "document", "bokehjs", "export", "sessions", "verdict")},
}
"""Every command with all of its arguments."""
UNKNOWN = ("unknown", "y" * 10_000, "\ud800")
FIELDS = tuple(sorted({"recorded", *(name for args in VALID.values() for name in args)}))


def _family(kind: type[Exception]) -> set[str]:
    return {kind.__name__}.union(*map(_family, kind.__subclasses__()))


LONGEST_ERROR = 300  # characters


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

    def ours(self) -> dict[str, Any]:
        """The reply, of which an error is one of this package, in a short sentence that quotes little."""
        reply = self.one()
        if reply["status"] == "error":
            assert reply["error"] in _family(MonitorError), reply
            assert len(reply["message"]) <= LONGEST_ERROR, reply
            assert not any(len(run[0]) > 80 for run in re.finditer(r"(.)\1+", reply["message"])), reply
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


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory for folders of any name, also for those above it."""
    place = tmp_path / "a" / "b" / "c"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)


@pytest.fixture
def loader() -> Iterator[Any]:
    """A loader that requests can be about, and that nobody iterates."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from kernel_monitor import switchable

    made = switchable(DataLoader(TensorDataset(torch.zeros(4, 1))), name=LOADER)
    yield made
    made.release()


@pytest.mark.usefixtures("loader", "place")
def test_hostile_requests_are_answered(monitor: Monitor) -> None:
    control = Control(monitor)
    assert VALID.keys() == {*control._quick, *control._slow}
    count = 0
    for value in HOSTILE:
        for content in (value, request(value, {}), request("hello", value), request("subscribe", {}, value)):
            Answered(control, content).ours()
        for command, valid in VALID.items():
            for field in (*valid, "recorded", *UNKNOWN):
                Answered(control, request(command, {**valid, field: value})).ours()
                count += 1
            Answered(control, request(command, dict.fromkeys(FIELDS, value))).ours()
    assert count > 2000
    for command, valid in VALID.items():
        for left_out in valid:
            Answered(control, request(command, {field: valid[field] for field in valid if field != left_out})).ours()
    for command in ("subscribe", "history", "glance"):
        assert Answered(control, request(command, VALID[command])).one()["status"] == "ok", command


# -- arbitrary requests ------------------------------------------------------------------------------------------------

QUICK = ("hello", "subscribe", "unsubscribe", "history", "glance", "sidebar", "switch", "decline", "set", "diagnose",
         "tune", "mark")  # fmt: skip
LONG = ("document", "bokehjs", "export", "stop")
QUICK_S = 2.0  # longest that `handle` may hold the control thread: a busy machine's milliseconds
RUNS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class", "socket.connect")
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.chmod", "shutil.rmtree")
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.sampled_from(HOSTILE),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
commands = st.sampled_from(sorted({*QUICK, *SLOW} - {*LONG}))
meant = st.fixed_dictionaries(  # by a page of ours, or nearly
    {
        "protocol": st.just(PROTOCOL),
        "command": commands,
        "args": st.just({})
        | st.builds(lambda field, value: {field: value}, st.sampled_from(FIELDS), values)
        | st.fixed_dictionaries({"client": st.text(max_size=30)}, optional={"touch": values, "since": st.integers()})
        | st.fixed_dictionaries({"label": st.text(max_size=30)}),
    }
)
arbitrary = values | st.fixed_dictionaries(
    {
        "protocol": st.just(PROTOCOL) | values,
        "command": commands | values,
        "args": st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), values, max_size=5) | values,
    }
)


class Watch:
    """What this process runs, removes and writes while `on`; audit hooks cannot be removed."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        written = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
        if event in RUNS or event in CHANGES or written:
            self.seen.append(f"{event} {args!r:.200}")

    @contextmanager
    def nothing(self) -> Iterator[None]:
        self.on = True
        try:
            yield
        finally:
            self.on = False
        seen, self.seen = self.seen, []
        assert seen == []


def test_arbitrary_requests_are_answered_in_bounded_time_and_run_nothing(monitor: Monitor) -> None:
    control, pages, watch = Control(monitor), WidgetPages(monitor.hub), Watch()
    pages.answer(lambda: control.handle)
    sent: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    page = pages.add(lambda message, _buffers: sent.put(message))
    counts = {"ok": 0, "error": 0}

    @settings(max_examples=300, deadline=None, database=None)
    @given(meant | arbitrary)
    def ask(content: Any) -> None:
        with watch.nothing():
            began = time.monotonic()
            asked = Answered(control, content)
            assert time.monotonic() - began < QUICK_S
            counts[asked.ours()["status"]] += 1
            page.receive(content)
            assert sent.empty()  # it is no message of a widget
            page.receive({"type": REQUEST, "id": "7", "content": content})
            reply = sent.get(timeout=20)
            assert (reply["type"], reply["id"], sent.empty()) == (REPLY, "7", True)

    ask()
    assert min(counts.values()) > 5, counts
    assert len(page.clients) < 400
    assert Answered(control, request("subscribe", {"client": "page"})).one()["status"] == "ok"


def test_no_more_pages_than_a_kernel_can_serve_hold_leases() -> None:
    now = 0.0
    hub = wire.Hub(lambda: now)
    for client in range(wire.MOST_LEASES):
        hub.subscribe(f"{client}")
    with pytest.raises(MonitorError, match="1,000 pages show this kernel already"):
        hub.subscribe("another")
    hub.subscribe("7")  # which renews
    now = wire.LEASE_S + 1
    hub.subscribe("another")
    assert not hub.holds("7", wire.FRAMES)


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


def add(control: Control, kind: str, command: str, work: Any) -> None:
    """Add a command without arguments."""
    getattr(control, kind)[command], control._fields[command] = work, fields({})


@pytest.mark.parametrize("kind", ["_quick", "_slow"])
@pytest.mark.parametrize("raised", RAISED, ids=lambda one: type(one).__name__.encode("ascii", "replace").decode())
def test_a_handler_that_raises_is_answered(monitor: Monitor, kind: str, raised: BaseException) -> None:
    control = Control(monitor)

    def fail(_args: Any) -> Any:
        raise raised

    add(control, kind, "fail", fail)
    reply = Answered(control, request("fail", {})).one()
    assert reply["status"] == "error"
    assert not {"\u202e", "\x1b", "\ud800"} & {*reply["error"], *reply["message"]}


def test_an_interrupt_is_answered_and_goes_on(monitor: Monitor) -> None:
    control = Control(monitor)

    def fail(_args: Any) -> Any:
        raise KeyboardInterrupt

    add(control, "_quick", "fail", fail)
    replies: list[dict[str, Any]] = []
    with pytest.raises(KeyboardInterrupt):
        control.handle(request("fail", {}), lambda content, _buffers: replies.append(dict(content)))
    assert [reply["error"] for reply in replies] == ["KeyboardInterrupt"]


@pytest.mark.parametrize("kind", ["_quick", "_slow"])
@pytest.mark.parametrize("answer", [object(), {1, 2}, b"bytes", DEEPEST], ids=["object", "set", "bytes", "deep"])
def test_an_answer_that_cannot_be_encoded_is_an_error(monitor: Monitor, kind: str, answer: Any) -> None:
    control = Control(monitor)
    add(control, kind, "odd", lambda _args: ({"status": "ok", "answer": answer}, []))
    reply = Answered(control, request("odd", {})).one()
    assert reply["status"] == "error"
    assert reply["message"].startswith("The answer cannot be sent: ")


def test_text_that_cannot_be_encoded_is_escaped_and_numbers_of_numpy_stay(monitor: Monitor) -> None:
    control = Control(monitor)
    answer = {"status": "ok", "path": "caf\udce9.jpg", "number": np.int64(3)}
    add(control, "_quick", "odd", lambda _args: (answer, []))
    reply = Answered(control, request("odd", {})).one()
    assert (reply["path"], reply["number"]) == ("caf\\xe9.jpg", 3)


def test_no_thread_for_a_slow_request_is_an_error(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    control = Control(monitor)
    monkeypatch.setattr(threading.Thread, "start", no_more)
    assert Answered(control, request("sessions", {})).one()["message"] == "can't start new thread"
