"""The sampler process by itself: its messages, its pipes, its end."""

from __future__ import annotations

import fcntl
import itertools
import math
import os
import resource
import subprocess
import sys
import time
from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.metrics import GROUPS
from kernel_monitor.sample import pipes as wire
from kernel_monitor.sample.pipes import Output
from tests.unit.checks import not_none
from tests.unit.sampler_taken import ROOT, Messages, sampler

F_SETPIPE_SZ = 1031


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.floats(width=32), max_size=5),
    texts=st.lists(st.text(max_size=20), max_size=3),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_messages_come_through_in_pieces_of_any_size(values: list[float], texts: list[str], cuts: list[int]) -> None:
    data = wire.encode_json(wire.HELLO, {"texts": texts}) + wire.FrameEncoder(len(values)).encode(12.5, 3, values)
    data += wire.encode_json(wire.NOTICE, {"level": "info", "message": "\udcff"})
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    decoder = wire.Decoder()
    found = [message for a, b in itertools.pairwise(edges) for message in decoder.feed(data[a:b])]
    assert [kind for kind, _ in found] == [wire.HELLO, wire.FRAME, wire.NOTICE]
    assert wire.decode_json(found[0][1]) == {"texts": texts}
    frame = wire.decode_frame(found[1][1])
    assert (frame.monotonic, frame.missed) == (12.5, 3)
    assert frame.values.tobytes() == array("f", values).tobytes()
    assert wire.decode_json(found[2][1])["message"] == "\udcff"


def test_a_frame_has_the_form_that_is_written_down() -> None:
    data = wire.FrameEncoder(2).encode(1.0, 258, [1.0, math.nan])
    assert data.hex(" ") == "14 00 00 00 02 00 00 00 00 00 00 f0 3f 02 01 00 00 00 00 80 3f 00 00 c0 7f"


@pytest.mark.parametrize(
    "data", [b"\x00\x00\x00\x00\x09", b"\xff\xff\xff\xff\x01", b"Traceback (most recent call last)"]
)
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(wire.WireError, match="kind"):
        list(wire.Decoder().feed(data))


@pytest.mark.parametrize("payload", [b"", b"[1]", b"{", b"\xff"])
def test_what_is_no_json_object_is_refused(payload: bytes) -> None:
    with pytest.raises(wire.WireError, match="JSON"):
        wire.decode_json(payload)


@pytest.mark.parametrize("length", [0, 11, 13])
def test_frames_cut_short_are_refused(length: int) -> None:
    with pytest.raises(wire.WireError, match="frame"):
        wire.decode_frame(bytes(length))


def test_a_full_pipe_loses_whole_messages_and_none_that_are_to_be_kept() -> None:
    reader, writer = os.pipe()
    try:
        room = fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
        output = Output(writer)
        long, frame, kept = b"a" * (2 * room + 7), b"b" * 50, b"c" * 60
        assert output.send(long)  # begun: what the pipe has no room for waits
        assert not output.send(frame)
        assert output.send(kept, keep=True)
        received = os.read(reader, 1 << 20)
        assert not output.send(frame)  # the rest of the long one comes first, and fills the pipe again
        received += os.read(reader, 1 << 20)
        assert output.send(frame)
        received += os.read(reader, 1 << 20)
        assert received == long + kept + frame
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("end", ["stdin", "stdout"])
def test_it_ends_when_stdin_ends_or_nobody_reads(end: str) -> None:
    with sampler("--interval=60" if end == "stdin" else "--interval=0.02") as process:
        messages = Messages(process)
        messages.read()
        began = time.monotonic()
        (messages.stdin if end == "stdin" else messages.stdout).close()
        assert process.wait(5) == 0
        assert time.monotonic() - began < 3.0
        assert not_none(process.stderr).read() == b""


def test_it_ends_when_its_parent_was_another_process_of_that_number() -> None:
    with sampler(f"--parent={os.getpid()}", "--parent-start=1.0") as process:
        assert process.wait(5) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--interval=0"], "between 0.01 and 60"),
        (["--interval=nan"], "between 0.01 and 60"),
        (["--interval=often"], "invalid float"),
        (["--parent=1"], "go together"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: list[str], words: str) -> None:
    with sampler(*options) as process:
        out, error = process.communicate(b"", 20)
    assert (process.returncode, out) == (2, b"")
    assert words in error.decode()


def test_a_reader_that_stands_still_loses_frames_and_is_told_how_many() -> None:
    with sampler("--interval=0.01") as process:
        messages = Messages(process)
        fcntl.fcntl(messages.stdout.fileno(), F_SETPIPE_SZ, 4096)
        messages.read()
        time.sleep(1.5)  # far more than the pipe holds
        while not any(frame.missed > 20 for frame in messages.frames):
            messages.read()
        messages.listen(20)
    frames = messages.frames
    at = max(range(len(frames)), key=lambda i: frames[i].missed)
    # Each frame's deadline by what it says was missed; no frame is early, and of twenty some are in time.
    deadlines = 0.01 * np.cumsum([frame.missed + 1 for frame in frames])
    late = np.array([frame.monotonic for frame in frames]) - deadlines
    assert late[at:].min() == pytest.approx(late[:at].min(), abs=0.02)
    assert {len(frame.values) for frame in frames} == {len(messages.hellos[0]["series"])}


def test_what_cannot_be_measured_is_missing_and_the_rest_goes_on() -> None:
    with sampler("--interval=0.05") as process:
        messages = Messages(process)

        def until(missing: bool) -> dict[str, float]:
            while math.isnan(messages.values[-1]["disk/read"]) != missing:
                messages.read()
            return messages.values[-1]

        messages.listen(25)
        until(missing=False)
        # No file can be opened any more; the cores' is open already.
        limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            until(missing=True)
            messages.listen(25)
        finally:
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
        grey = messages.values[-1]
        until(missing=False)
    assert math.isnan(grey["memory/used"])
    assert not any(math.isnan(grey[f"cpu/{core}/busy"]) for core in messages.hellos[0]["cpus"])
    told = [notice["message"] for notice in messages.notices]
    names = sorted(text.split()[0] for text in told)
    assert {"disk", "load", "memory", "network", "process"} <= set(names) <= {*GROUPS, "limits", "topology"}
    assert len(names) == len(set(names))  # once each
    assert all("Too many open files" in text for text in told)


def test_the_process_is_light() -> None:
    source = (
        "import sys; sys.argv = ['sample']\n"
        "from kernel_monitor.sample.__main__ import main\n"
        "main()\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    # On stdout are frames: bytes, which are no text as soon as a length has one above 127.
    found = subprocess.run(
        [sys.executable, "-c", source], stdin=subprocess.DEVNULL, capture_output=True, cwd=ROOT, check=True
    )
    modules = {name.split(".")[0] for name in found.stderr.decode().split()}
    assert "psutil" in modules
    assert not modules & {"numpy", "torch", "bokeh", "IPython", "ipykernel", "ipywidgets", "nvidia", "zmq", "asyncio"}
