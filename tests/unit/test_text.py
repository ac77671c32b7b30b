"""Text of people and files: shown, never obeyed, and always such that it can be encoded."""

from __future__ import annotations

import os
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies

from kernel_monitor import watch_loader
from kernel_monitor.errors import MonitorError, SessionError
from kernel_monitor.runtime import Monitor
from kernel_monitor.runtime.settings import Settings
from kernel_monitor.steps.watched_loader import live, step
from kernel_monitor.text import NAME_LETTERS, checked_text, line, printable, printable_in, quoted

BIDI = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C]
HALF = "loss \ud800 0.3"


def test_a_quoted_value_is_short_and_never_an_error() -> None:
    assert (quoted("a\nb"), quoted(2.5), quoted(None), quoted(["a", 1])) == ("'a\\nb'", "2.5", "None", "['a', 1]")
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in ("x" * 10_000, "\ud800" * 50, b"x" * 10_000, dict.fromkeys(range(5000), "x" * 90), deep, 10**5000):
        assert 0 < len(quoted(value)) <= NAME_LETTERS
        quoted(value).encode()


def test_every_control_and_bidirectional_character_and_surrogate_is_escaped() -> None:
    escaped = {code for code in range(sys.maxunicode + 1) if printable(chr(code)) != chr(code)}
    named = {code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in ("Cc", "Cs", "Zl", "Zp")}
    assert escaped == (named | set(BIDI)) - set(map(ord, "\t\n"))
    assert printable("\x1b[2J\u202egpj.tac \x9b") == "\\x1b[2J\\u202egpj.tac \\x9b"
    assert printable(os.fsdecode(b"caf\xe9.jpg")) == "caf\\xe9.jpg"
    assert printable("\ud83d\ude00") == "\\ud83d\\ude00"  # two halves are no whole character in Python
    assert printable("日本語 é \N{FAMILY} ا") == "日本語 é \N{FAMILY} ا"


@for_all(strategies.text(strategies.characters()), strategies.integers(1, 100))
def test_a_line_is_one_short_line_that_can_be_encoded_and_stays_as_it_is(text: str, most: int) -> None:
    once = line(text, most)
    once.encode()
    assert len(once) <= most
    assert once.splitlines() == ([once] if once else [])
    assert line(once, most) == once


def test_a_name_is_cut_and_half_a_character_is_refused() -> None:
    assert checked_text("  train\n set ", "It") == "train set"
    assert checked_text("x" * 10_000, "It") == "x" * (NAME_LETTERS - 1) + "…"
    with pytest.raises(MonitorError, match=r"It has half a character in it \('\\ud800', a lone surrogate\)"):
        checked_text(HALF, "It")


def test_lists_and_objects_as_a_whole() -> None:
    assert printable_in({"a\x00": [1, None, ("\u202e", 2.5)]}) == {"a\\x00": [1, None, ["\\u202e", 2.5]]}


def test_names_of_loops_are_kept_short_and_harmless() -> None:
    hostile = "train\u202e" + "x" * 100_000
    loader = watch_loader([[0]] * 2, name=hostile)
    (source,) = [one for one in live() if one.name.startswith("train\\u202e")]
    assert len(source.name) == NAME_LETTERS
    assert "\u202e" not in repr(loader)
    assert watch_loader([[0]], name=" ")._kernel_monitor_source.name.startswith("loader-")
    with pytest.raises(MonitorError, match="The name of a loop has half a character"):
        watch_loader([[0]], name=HALF)
    with pytest.raises(MonitorError, match="The name of a loop has half a character"), step(HALF):
        pass


def test_marks_and_settings_refuse_what_cannot_be_stored(tmp_path: Path) -> None:
    monitor = Monitor()
    with pytest.raises(MonitorError, match="A mark has half a character"):
        monitor.mark(HALF)
    with pytest.raises(SessionError, match="currency"):
        monitor.configure(price="2.5 \u202e$")
    with pytest.raises(SessionError, match="currency"):
        monitor.configure(price="2.5 \ud800")
    for folder in (f"{tmp_path}/\ud800", f"{tmp_path}/a\0b"):
        with pytest.raises(SessionError, match="cannot be a folder for the recordings"):
            monitor.configure(record=folder)
    assert monitor.settings == Settings().to_json()
    monitor.configure(record=tmp_path / "caf\udce9")  # such folders exist
    assert monitor.settings["record_to"] == f"{tmp_path}/caf\udce9"
