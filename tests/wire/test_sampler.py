"""The two directions between kernel and sampler against the golden messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kernel_monitor.sample import pipes
from kernel_monitor.sample.loop import RECORDED

GOLDEN = Path(__file__).parent / "sampler"
ROOT = Path(__file__).resolve().parents[2]


def told(lines: bytes, until_interval: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Hellos and notices of a sampler that was sent `lines`, until it samples at that interval."""
    with subprocess.Popen(
        [sys.executable, "-m", "kernel_monitor.sample", "--interval=0.1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        bufsize=0,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(lines)
        decoder = pipes.Decoder()
        hellos: list[dict[str, Any]] = []
        notices: list[dict[str, Any]] = []
        frames, until = 0, time.monotonic() + 20
        while frames < 3:
            assert time.monotonic() < until
            for kind, payload in decoder.feed(os.read(process.stdout.fileno(), 1 << 16)):
                if kind == pipes.FRAME:
                    frames += hellos[-1]["interval"] == until_interval
                else:
                    (hellos if kind == pipes.HELLO else notices).append(pipes.decode_json(payload))
        process.stdin.close()
        assert process.wait(5) == 0
    return hellos, notices


def test_every_command_of_the_kernel_is_understood_and_the_hello_has_the_golden_form() -> None:
    lines = (GOLDEN / "commands.jsonl").read_bytes()
    commands = [json.loads(line) for line in lines.splitlines()]
    assert {command["do"] for command in commands} == {"interval", "roles", "record", *RECORDED}
    hellos, notices = told(lines, commands[0]["seconds"])
    assert notices == []
    expected = json.loads((GOLDEN / "hello.json").read_text("utf-8"))
    hello = hellos[-1]
    assert hello.keys() == expected.keys()
    assert hello["host"].keys() == expected["host"].keys()
    for part in ("topology", "limits"):
        assert hello["host"][part].keys() == expected["host"][part].keys()
    assert hello["series"][0] == expected["series"][0]
    assert all(isinstance(words, str) for words in hello["host"]["reasons"].values())
    assert hello["interval"] == expected["interval"]


def test_a_command_of_another_version_is_told_and_the_rest_is_done() -> None:
    hellos, notices = told(b'{"do": "dance"}\n{"do": "interval", "seconds": 0.05}\n', 0.05)
    assert [notice["message"] for notice in notices] == ["the sampler knows no such command: 'dance'"]
    assert hellos[-1]["interval"] == 0.05
