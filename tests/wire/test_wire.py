"""The kernel's half of the wire against the golden messages, which vitest reads with the page's half."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_monitor.control import Control, complete
from kernel_monitor.errors import BackendUnavailable
from kernel_monitor.protocol.message_types import FRAME, GLANCE, NOTICE, PROTOCOL, REPLY, REQUEST
from kernel_monitor.runtime import Monitor
from kernel_monitor.steps.watched_loader import Source
from kernel_monitor.store import Rows, Schema
from kernel_monitor.stream import hub as wire

from ..waiting import until
from .schema import schema, validate

GOLDEN = Path(__file__).parent / "golden"
REQUESTS = sorted(path.stem.removeprefix("request-") for path in GOLDEN.glob("request-*.json"))


STEERING = ("switch", "switch-confirmed", "set")
RECORDED = [name for name in REQUESTS if name.endswith("-recorded") or name == "open"]
ELSEWHERE = (*STEERING, *RECORDED, "document", "export", "stop")


KINDS = {
    **dict.fromkeys(("hello", "start", "stop"), "HelloReply"),
    **dict.fromkeys(("switch", "set"), "LoaderReply"),
    **dict.fromkeys(("unsubscribe", "sidebar", "mark"), "Reply"),
    "subscribe": "SubscribeReply",
    "history": "HistoryReply",
    "glance": "GlanceReply",
    **dict.fromkeys(("decline", "diagnose", "profile", "verdict"), "FindingsReply"),
    "configure": "ConfigureReply",
    "document": "DocumentReply",
    "bokehjs": "BokehReply",
    "export": "ExportReply",
    "code": "CodeReply",
    "sessions": "SessionsReply",
    "open": "OpenReply",
}
"""The type of the reply to each command."""


def golden(name: str) -> tuple[str, dict[str, Any], list[bytes]]:
    """Type, content and buffers of a golden message."""
    message = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))
    return message["msg_type"], message["content"], [base64.b64decode(text) for text in message["buffers"]]


def shape(value: Any) -> Any:
    """What a page relies on: the names in objects, and the kinds of values."""
    if isinstance(value, dict):
        return {key: shape(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if isinstance(value, int | float) else type(value).__name__


@pytest.fixture
def monitor() -> Iterator[tuple[Monitor, list[tuple[str, dict[str, Any], list[bytes]]]]]:
    """A monitor that samples this machine, and what it published."""
    sent: list[tuple[str, dict[str, Any], list[bytes]]] = []
    one = Monitor()
    one.publisher.connect(lambda kind, content, buffers=None: sent.append((kind, content, buffers or [])))
    one.start()
    try:
        until(lambda: one.store.last_seq > 0)
        yield one, sent
    finally:
        one.stop()
        one.publisher.connect(None)


def ask(monitor: Monitor, content: Any) -> tuple[dict[str, Any], list[bytes]]:
    schema()  # made now: it takes as long as a short diagnosis
    answers: list[tuple[dict[str, Any], list[bytes]]] = []
    Control(monitor).handle(content, lambda reply, buffers: answers.append((dict(reply), buffers)))
    until(lambda: answers, 60)  # a document is made by a process that first imports Bokeh
    reply = answers[0][0]
    json.dumps(reply, allow_nan=False)
    if reply["status"] == "ok":
        validate(reply, KINDS[content["command"]])
    else:
        validate(reply, "ErrorReply")
    return answers[0]


def test_names() -> None:
    types = {golden(path.stem)[0] for path in GOLDEN.glob("*.json")}
    assert types == {REQUEST, REPLY, FRAME, NOTICE, GLANCE}
    assert {golden(f"request-{name}")[1]["protocol"] for name in REQUESTS} == {PROTOCOL}


def test_schema_is_the_golden_one() -> None:
    content = golden("reply-history")[1]["schema"]
    schema = Schema.from_json(content)
    assert schema.to_json() == content
    assert schema.columns["loader/loader-1/step"] == 6


def test_history_is_encoded_as_the_golden_one() -> None:
    _, content, buffers = golden("reply-history")
    nan = np.nan
    first = [12.5, 100, 8589934592, nan, 320, nan, nan]
    values = np.array([first, [50, 99.5, 8606711808, 31, 0, 12.25, 80.5], [nan] * 7], dtype=np.float32)
    rows = Rows(Schema.from_json(content["schema"]), np.arange(15, 18), np.array([1.5, 1.6, 1.7]), values)
    encoded, encoded_buffers = wire.history(rows, content["events"], content["charts"])
    assert encoded == content
    assert encoded_buffers == buffers
    assert wire.encode_values(values[1]) == golden("frame")[2][0]


def test_error_is_the_golden_one() -> None:
    _, content, _ = golden("reply-error")
    assert wire.error(BackendUnavailable(content["message"])) == content


@pytest.mark.parametrize("name", [name for name in REQUESTS if name not in ELSEWHERE])
def test_every_request_is_understood_and_answered_in_the_golden_form(name: str, monitor: Any) -> None:
    reply, buffers = ask(monitor[0], golden(f"request-{name}")[1])
    like = {"start": "hello", "start-settings": "hello", "subscribe-touch": "subscribe"}.get(name, name)
    _, content, golden_buffers = golden(f"reply-{like}")
    assert len(buffers) == len(golden_buffers)
    # These depend on the machine, and have their own comparison.
    for both in (reply, content):
        for key in ("schema", "loaders", "events", "strip", "glance", "sessions"):
            both.pop(key, None)
    assert shape(reply) == shape(content)


def test_a_glance_has_the_golden_form(monitor: Any) -> None:
    one, sent = monitor
    reply, _ = ask(one, golden("request-glance")[1])
    until(lambda: any(kind == GLANCE for kind, _, _ in sent))
    content, buffers = next((content, buffers) for kind, content, buffers in sent if kind == GLANCE)
    assert buffers == []
    json.dumps(content, allow_nan=False)
    validate(content, "Glance")
    assert content.keys() == golden("glance")[1].keys()
    assert reply["glance"].keys() == golden("reply-glance")[1]["glance"].keys()
    assert 0 <= content["cpu"] <= 100
    assert 0 < content["memory_used"] < content["memory_total"]
    assert shape(content["recording"]) == shape(golden("glance")[1]["recording"])
    assert not any(kind == FRAME for kind, _, _ in sent)


@pytest.fixture
def recorded(monitor: Any) -> tuple[Monitor, str]:
    """A monitor, and the id of a session that has been recorded."""
    one, _ = monitor
    until(lambda: one.store.last_seq > 12)
    session = one.session
    assert session is not None
    one.stop()
    return one, session


def test_what_is_asked_of_a_recorded_session_is_answered_in_the_golden_form(recorded: tuple[Monitor, str]) -> None:
    one, session = recorded
    listed, _ = ask(one, golden("request-sessions")[1])
    entry = next(entry for entry in listed["sessions"] if entry["id"] == session)
    assert entry.keys() == golden("reply-sessions")[1]["sessions"][0].keys()
    assert (entry["live"], entry["goodbye"]) == (False, True)
    opened, _ = ask(one, {**golden("request-open")[1], "args": {"path": entry["path"]}})
    assert opened["recorded"] == session
    expected = golden("reply-open")[1]
    assert {**shape(opened), "facts": {}, "bin_s": None} == {**shape(expected), "facts": {}, "bin_s": None}
    for name in RECORDED:
        if name == "open":
            continue
        command = name.removesuffix("-recorded")
        request = golden(f"request-{name}")[1]
        reply, buffers = ask(one, {**request, "args": {**request["args"], "recorded": session}})
        like = name if command == "subscribe" else command
        _, content, golden_buffers = golden(f"reply-{like}")
        assert reply["status"] == "ok", reply
        assert len(buffers) == len(golden_buffers)
        assert reply.keys() == content.keys()
        if command == "subscribe":
            assert reply["recorded"].keys() == content["recorded"].keys()
            assert (reply["running"], reply["recorded"]["goodbye"]) == (False, True)


def test_a_session_that_is_not_there_is_refused_by_name(monitor: Any) -> None:
    one, _ = monitor
    for args in ({"recorded": "nowhere"}, {"recorded": "nowhere", "client": "a"}):
        reply, _ = ask(one, {"protocol": 2, "command": "subscribe", "args": args})
        assert (reply["status"], reply["error"]) == ("error", "SessionError")
        assert "nowhere" in reply["message"]
    reply, _ = ask(one, {"protocol": 2, "command": "switch", "args": {"recorded": "nowhere"}})
    assert "of a recorded session there are" in reply["message"]


def test_history_of_a_live_monitor_has_the_golden_layout(monitor: Any) -> None:
    reply, (seq, moments, values) = ask(monitor[0], golden("request-history")[1] | {"args": {"since": 0}})
    rows, width = reply["rows"], len(reply["schema"]["series"])
    assert rows > 0
    assert np.array_equal(np.frombuffer(seq, "<f8"), np.arange(1, rows + 1))
    assert len(moments) == 8 * rows
    assert len(values) == 4 * rows * width
    assert set(reply["schema"]) == set(golden("reply-history")[1]["schema"])


def test_a_live_frame_has_the_golden_form(monitor: Any) -> None:
    one, sent = monitor
    ask(one, golden("request-subscribe")[1])
    until(lambda: any(kind == FRAME for kind, _, _ in sent))
    _, content, buffers = next(message for message in sent if message[0] == FRAME)
    assert len(buffers) == 1
    assert len(buffers[0]) == 4 * len(one.store.page_schema.series) < 4 * len(one.store.schema.series)
    json.dumps(content, allow_nan=False)
    validate(content, "Frame")
    expected = golden("frame")[1]
    for both in (content, expected):
        for key in ("loaders", "events", "strip"):
            both.pop(key)
    assert shape(content) == shape(expected)


def test_a_notice_has_the_golden_form(monitor: Any) -> None:
    one, sent = monitor
    one.stop()
    notices = [content for kind, content, _ in sent if kind == NOTICE]
    assert [notice["kind"] for notice in notices] == ["started", "stopped"]
    for notice in notices:
        validate(notice, "Notice")
    assert shape(notices[1]) == shape(golden("notice")[1])


@pytest.mark.parametrize("name", STEERING)
def test_what_steers_a_loader_is_understood(monitor: Any, name: str) -> None:
    reply, _ = ask(monitor[0], golden(f"request-{name}")[1])
    # Without a loader in this process the request itself is what can be judged: it got as far as looking for one.
    assert (reply["status"], reply["error"]) == ("error", "MonitorError")
    assert "switchable" in reply["message"]


def test_a_watched_iterable_has_the_form_of_a_loader() -> None:
    source = Source("evaluation")
    validate(source.state(), "LoaderState")
    source.begin()
    validate({**source.state(), "epochs": source.epochs()}, "ReportedState")


def test_a_recorded_state_is_sent_with_every_field() -> None:
    """The reader of recordings leaves out fields that are damaged."""
    state = {"id": "loader-1", "name": "train", "epoch": 0, "samples": 4, "backends": [{"name": "torchvision"}]}
    sent = complete(state)
    validate(sent, "LoaderState")
    assert (sent["samples"], sent["backends"][0]["name"]) == (4, "torchvision")


def images(root: Path, count: int) -> Any:
    """A switchable loader over that many images, named `wire`."""
    from PIL import Image
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    from kernel_monitor import switchable

    (root / "a").mkdir()
    for index in range(count):
        Image.new("RGB", (40, 30), (index * 40, 90, 120)).save(root / "a" / f"{index}.jpg")
    transform = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()])
    return switchable(DataLoader(ImageFolder(str(root), transform), batch_size=2), name="wire", on_error="skip")


def test_a_loader_state_has_the_golden_form(tmp_path: Path) -> None:
    loader = images(tmp_path, 5)
    (tmp_path / "a" / "3.jpg").write_bytes(b"no image")
    assert sum(len(labels) for _, labels in loader) == 4
    one = Monitor()
    state = next(state for state in one.loader_states() if state["name"] == "wire")
    expected = golden("reply-switch")[1]["loader"]
    assert set(state) == set(expected)
    assert [one["name"] for one in state["backends"]] == [one["name"] for one in expected["backends"]]
    assert set(state["backends"][0]) == set(expected["backends"][0])
    assert [one["confirm"] is not None for one in state["backends"]] == [False, False, False, False, True, True]
    assert (state["samples"], state["planned"], state["lost"], state["doubled"]) == (4, 5, 0, 0)
    assert (state["skipped"], state["replaced"]) == (1, 0)
    assert shape(state["skips"]) == shape(expected["skips"])
    assert state["knobs"].keys() == expected["knobs"].keys()
    assert state["decoded"]["torchvision"] == 4
    json.dumps(state, allow_nan=False)


def request(command: str, **args: Any) -> dict[str, Any]:
    return {"protocol": PROTOCOL, "command": command, "args": args}


def test_knobs_are_set_and_answered_with_the_state(tmp_path: Path) -> None:
    loader = images(tmp_path, 4)
    monitor = Monitor()
    reply, _ = ask(monitor, request("set", loader=loader.id, workers=1, prefetch=3))
    assert (reply["status"], reply["loader"]["id"]) == ("ok", loader.id)
    assert (reply["loader"]["knobs"]["workers"], reply["loader"]["knobs"]["prefetch"]) == (1, 3)
    assert (loader.knobs.workers, loader.knobs.prefetch) == (1, 3)
    assert sum(len(labels) for _, labels in loader) == 4
    loader.release()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({}, "Say what to set"),
        ({"workers": 1.5}, "set: workers is no whole number from 0 to 256."),
        ({"workers": True}, "set: workers is no whole number from 0 to 256."),
        ({"threads": None}, "set: threads is no whole number from 0 to 256."),
        ({"colour": 3}, "set: there is no 'colour'; there are loader, workers, prefetch, threads."),
        ({"workers": -1}, "set: workers is no whole number from 0 to 256."),
        ({"prefetch": 0}, "set(prefetch=0): give a whole number from 1 to 256."),
    ],
)
def test_what_cannot_be_set_is_refused_by_name(tmp_path: Path, args: dict[str, Any], says: str) -> None:
    loader = images(tmp_path, 2)
    before = loader.knobs
    reply, _ = ask(Monitor(), request("set", loader=loader.id, **args))
    assert reply["status"] == "error"
    assert says in reply["message"]
    assert loader.knobs == before


def test_synthetic_is_not_switched_to_before_somebody_said_yes(tmp_path: Path) -> None:
    loader = images(tmp_path, 4)
    monitor = Monitor()
    question = loader.backends["synthetic"].confirm
    for confirmed in ({}, {"confirmed": False}):
        reply, _ = ask(monitor, request("switch", loader=loader.id, backend="synthetic", **confirmed))
        assert reply["status"] == "error"
        assert question in reply["message"]
    reply, _ = ask(monitor, request("switch", loader=loader.id, backend="synthetic", confirmed="yes"))
    assert reply["message"] == "switch: confirmed is neither true nor false."
    assert (loader.state()["wanted"], loader.backend) == (None, "torchvision")
    reply, _ = ask(monitor, request("switch", loader=loader.id, backend="synthetic", confirmed=True))
    assert reply["loader"]["wanted"] == "synthetic"
    # On its way: there is nothing to ask any more.
    assert ask(monitor, request("switch", loader=loader.id, backend="synthetic"))[0]["status"] == "ok"
