"""The table of docs/howto/frameworks.md is the one that the tests of this folder assert, row by row."""

from __future__ import annotations

import re
from pathlib import Path

from .table import PAGE, ROWS, Click, page


def test_the_page_has_the_table_of_these_tests() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(written), "python -m tests.frameworks.table writes it anew"


def test_each_row_is_asserted_by_a_test_and_says_why_where_a_click_has_no_effect() -> None:
    texts = [file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py")]
    asserted = {use for text in texts for use in re.findall(r'row\(\s*"([^"]+)"', text)}
    assert {one.use for one in ROWS} == asserted
    assert not [one.use for one in ROWS if one.click is not Click.MID_EPOCH and not one.note.endswith(".")]
