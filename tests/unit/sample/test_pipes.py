"""What the kernel tells the sampler: in order, never waiting, and nothing from a forked child."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from kernel_monitor.sample.pipes import BACKLOG, Outbox
from kernel_monitor.sample.sampler_client import SamplerClient
from tests.unit.checks import threads, wait_for
from tests.unit.sampler_taken import ROOT


def read_lines(pipe: int, wanted: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    data = b""
    until = time.monotonic() + 10
    while True:
        assert time.monotonic() < until
        data += os.read(pipe, 1 << 16)
        if data.endswith(b"\n"):
            lines = [json.loads(line) for line in data.splitlines()]
            if wanted(lines):
                return lines


@pytest.fixture
def outbox() -> Iterator[Outbox]:
    box = Outbox()
    box.start()
    yield box
    box.close()


def put_events(outbox: Outbox, number: int) -> None:
    for count in range(200):
        outbox.put({"do": "event", "event": [number, count]})


def test_what_is_sent_arrives_in_order_from_any_thread(outbox: Outbox) -> None:
    reader, writer = os.pipe()
    assert outbox.put({"do": "facts", "facts": {}})  # before there is a sampler
    outbox.connect(writer)
    with threads(*(partial(put_events, outbox, number) for number in range(4))):
        lines = read_lines(reader, lambda lines: len(lines) == 801)
    assert lines[0]["do"] == "facts"
    for number in range(4):
        assert [line["event"][1] for line in lines[1:] if line["event"][0] == number] == list(range(200))
    assert outbox.flush(5)
    outbox.connect(None)
    os.close(writer)
    os.close(reader)


def test_a_sampler_that_does_not_read_loses_the_oldest_values_and_no_event(outbox: Outbox) -> None:
    reader, writer = os.pipe()
    outbox.connect(writer)
    rows = [[0.0, {"loader/a/images": 1.0}]] * 500
    began = time.monotonic()
    for number in range(200):
        outbox.put({"do": "values", "number": number, "rows": rows})
        if number % 10 == 0:
            outbox.put({"do": "event", "number": number})
    assert time.monotonic() - began < 3.0  # nobody waited: the pipe is full all the time
    wait_for(lambda: outbox.dropped > 50)
    outbox.put({"do": "goodbye"})
    lines = read_lines(reader, lambda lines: lines[-1]["do"] == "goodbye")
    assert [line["number"] for line in lines if line["do"] == "event"] == list(range(0, 200, 10))
    kept = [line["number"] for line in lines if line["do"] == "values"]
    assert (kept, kept[-1]) == (sorted(kept), 199)
    assert len(kept) + outbox.dropped == 200
    assert sum(len(json.dumps(line)) for line in lines) < 2 * BACKLOG
    outbox.connect(None)
    os.close(writer)
    os.close(reader)


def test_a_line_that_was_begun_is_whole_for_the_next_sampler(outbox: Outbox) -> None:
    first_reader, first_writer = os.pipe()
    outbox.connect(first_writer)
    long = {"do": "facts", "facts": "x" * 200_000}
    outbox.put(long)
    wait_for(lambda: len(os.read(first_reader, 1000)) == 1000)
    os.close(first_reader)  # it was killed
    time.sleep(0.15)
    outbox.connect(None)
    os.close(first_writer)
    second_reader, second_writer = os.pipe()
    outbox.connect(second_writer)
    assert read_lines(second_reader, lambda lines: len(lines) == 1) == [long]
    outbox.connect(None)
    os.close(second_writer)
    os.close(second_reader)


def test_what_cannot_be_sent_is_refused(outbox: Outbox) -> None:
    with pytest.raises(TypeError):
        outbox.put({"do": "facts", "facts": object()})
    assert not outbox.put({"do": "facts", "facts": "x" * BACKLOG})
    outbox.close()
    assert not outbox.put({"do": "facts", "facts": {}})
    client = SamplerClient(0.1, print, print, print, print)
    with pytest.raises(ValueError, match="between"):
        client.send({"do": "interval", "seconds": 0.0})


FORK = """
import os, sys
from kernel_monitor.sample.sampler_client import SamplerClient
frames = []
client = SamplerClient(0.05, lambda hello: None, lambda *frame: frames.append(frame), print, print)
client.start()
while len(frames) < 3:
    pass
child = os.fork()
if child == 0:
    os._exit(int(client.send({"do": "facts", "facts": {}})))
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, client.send({"do": "facts", "facts": {}}))
"""


def test_a_forked_child_sends_nothing() -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, cwd=ROOT, timeout=30, check=True
    )
    assert found.stdout == "0 True\n"


# -- recording --------------------------------------------------------------------------------------------------------
