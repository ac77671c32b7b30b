"""Requests over HTTP: who may ask, and what a page gets."""

from __future__ import annotations

import errno
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_monitor.stream.http_requests import _MOST_WAITING, PATH, HttpRequests

from ...waiting import until

PAGE = "http://localhost:2718"


class Client:
    """A browser on this machine, as far as a server can tell."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.server = HttpRequests(self._handle)

    def _handle(self, content: Any, reply: Any) -> None:
        self.asked.append(content)
        reply({"status": "ok", "echo": content}, [b"\x01\x02", b"\x03"])

    def send(
        self, method: str = "POST", path: str = PATH, body: str = '{"command": "hello"}', **headers: str | None
    ) -> http.client.HTTPResponse:
        address = self.server.address
        given: dict[str, str | None] = {"Origin": PAGE, "Authorization": f"Bearer {address['token']}", **headers}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        connection.request(method, path, body, {name: value for name, value in given.items() if value is not None})
        return connection.getresponse()


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    client = Client()
    yield client
    client.server.close()


@pytest.fixture
def client(server: Client) -> Client:
    server.asked.clear()
    return server


@pytest.mark.parametrize("origin", [PAGE, "http://127.0.0.1:8888", "https://[::1]:1", "vscode-webview://0a1b2c"])
def test_a_page_of_this_machine_gets_content_and_buffers(client: Client, origin: str) -> None:
    reply = client.send(Origin=origin)
    body = reply.read()
    length = struct.unpack("<I", body[:4])[0]
    assert reply.status == 200
    assert reply.headers["Access-Control-Allow-Origin"] == origin
    assert json.loads(body[4 : 4 + length]) == {
        "content": {"status": "ok", "echo": {"command": "hello"}},
        "buffers": [2, 1],
    }
    assert body[4 + length :] == b"\x01\x02\x03"


@pytest.mark.parametrize(
    ("status", "change"),
    [
        (403, {"Origin": None}),
        (403, {"Origin": "null"}),
        (403, {"Origin": "https://evil.example"}),
        (403, {"Origin": "http://localhost.evil.example"}),
        (403, {"Origin": "http://localhost:80@evil.example"}),
        (403, {"Host": "evil.example"}),
        (401, {"Authorization": None}),
        (401, {"Authorization": "Bearer "}),
        (401, {"Authorization": "Bearer é"}),
        (404, {"path": "/"}),
        (400, {"body": "{"}),
        (400, {"body": "[" * 30_000}),
        (400, {"Content-Length": "-1"}),
        (400, {"body": json.dumps("x" * 70_000)}),
        (501, {"method": "GET"}),
    ],
)
def test_everybody_else_is_refused_and_nothing_is_handled(client: Client, status: int, change: dict[str, Any]) -> None:
    assert client.send(**change).status == status
    assert client.asked == []


def test_a_browser_asks_first_and_its_question_needs_no_token(client: Client) -> None:
    allowed = client.send("OPTIONS", Authorization=None)
    assert allowed.status == 204
    assert allowed.headers["Access-Control-Allow-Headers"] == "Authorization, Content-Type"
    assert client.send("OPTIONS", Origin="https://evil.example").headers["Access-Control-Allow-Origin"] is None
    assert client.asked == []


def test_it_listens_on_loopback_alone_and_no_longer_once_it_is_closed() -> None:
    client = Client()
    assert client.server.address["url"].startswith("http://127.0.0.1:")
    assert len(client.server.address["token"]) >= 43  # 256 bits
    client.server.close()
    with pytest.raises(ConnectionRefusedError):
        client.send()


# -- who is no browser -------------------------------------------------------------------------------------------------

words = st.binary(max_size=40) | st.sampled_from(
    [b"POST", b"GET", b"OPTIONS", PATH.encode(), b"*", b"HTTP/1.1", b"HTTP/9", b"\x16\x03\x01", b"\0", b"%y"]
)
headers = st.sampled_from(
    [
        b"Host: 127.0.0.1:%d", b"Host: evil.example", b"Origin: http://localhost:1", b"Origin: null",
        b"Origin:\xff\xfe",
        b"Origin: http://localhost:1\r\n X-Folded: 1", b"Authorization: Bearer x", b"Authorization: Bearer ",
        b"Content-Length: 99999999999999999999", b"Content-Length: -5", b"Transfer-Encoding: chunked",
        b"Expect: 100-continue", b"Connection: keep-alive", b": ", b"\0: \0", b"X: %y",
    ]
)  # fmt: skip


def raw(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def spoken(port: int, data: bytes) -> bytes:
    """What the server says to these bytes until it closes; a reset is no word."""
    with raw(port) as connection:
        found = b""
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                found += part
        except ConnectionError:
            pass
        except OSError as error:  # closed before it could be shut down
            if error.errno != errno.ENOTCONN:
                raise
        return found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.lists(words, max_size=4), lines=st.lists(headers, max_size=6), body=st.binary(max_size=200))
def test_what_is_no_request_is_refused(
    client: Client, capfd: pytest.CaptureFixture[str], start: list[bytes], lines: list[bytes], body: bytes
) -> None:
    port = client.server.port
    request = b"\r\n".join([b" ".join(start), *lines]).replace(b"%d", b"%d" % port).replace(b"%y", b"y" * 70_000)
    said = spoken(port, request + b"\r\n\r\n" + body)
    assert not said.startswith(b"HTTP/1.0 200")
    assert b"\nX-Folded" not in said
    assert client.asked == []
    assert capfd.readouterr() == ("", "")  # nothing in the notebook


def test_idle_connections_cost_a_few_threads_and_keep_nobody_out(client: Client) -> None:
    before = threading.active_count()
    with ExitStack() as many:
        for _ in range(10 * _MOST_WAITING):
            idle = many.enter_context(closing(raw(client.server.port)))
            idle.sendall(b"POST " + PATH.encode())  # and never an end
        most = before + _MOST_WAITING + 2
        until(lambda: threading.active_count() <= most, 5)
        began = time.monotonic()
        assert client.send().status == 200
        assert time.monotonic() - began < 5
        assert threading.active_count() <= most


def test_a_page_that_is_closed_before_its_answer_leaves_no_word(
    client: Client, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    went, answered = threading.Event(), threading.Event()

    def answer(content: Any, reply: Any) -> None:
        went.wait(10)
        reply({"status": "ok"}, [bytes(10_000_000)])
        answered.set()

    monkeypatch.setattr(client.server._server, "answer", answer)
    threads = threading.active_count()
    with raw(client.server.port) as connection:
        head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{client.server.port}\r\nOrigin: {PAGE}\r\n"
        token = client.server.address["token"]
        connection.sendall(f"{head}Authorization: Bearer {token}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    went.set()
    assert answered.wait(10)
    until(lambda: threading.active_count() <= threads)
    assert capfd.readouterr() == ("", "")


def test_a_fault_is_an_answer_and_not_a_word_in_the_notebook(
    client: Client, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_content: Any, _reply: Any) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(client.server._server, "answer", fail)
    assert client.send().status == 500
    assert capfd.readouterr() == ("", "")
    assert "a request over HTTP has no answer" in caplog.text
