"""The list of all sentences that the product can say, and what holds for each of them."""

from __future__ import annotations

import re

import pytest

from tests.sentences import LIST, is_prose, listed, of_python, of_template, of_typescript, sentences

FORBIDDEN = {
    "a share saved, no factor": r"of the step time saved|% (longer|shorter) steps|steps .*% (longer|shorter)",
    "a gain that is missing": r"missing the gain|the gain of \{",
    "no wait": r"[Nn]o wait for data( left)?:|\bno wait for data\b",
    "who looked": r"looked and did not",
    "Diagnose as one that tries": r"Diagnose tries",
    "a double negation": r"\b(not|never|no|nobody|nothing)\b[^.;:,]*\b(without|unless|nothing|nobody)\b",
    "a riddle": r"is not one thing|next to nothing|would not be faster here",
}


def test_the_list_is_what_the_code_says() -> None:
    assert LIST.read_text(encoding="utf-8") == listed(), "run `make sentences`, and read what changed"


@pytest.mark.parametrize("reason", FORBIDDEN)
def test_no_sentence_is_a_riddle(reason: str) -> None:
    pattern = re.compile(FORBIDDEN[reason])
    found = [f"{name}: {text}" for name, said in sentences().items() for text in said if pattern.search(text)]
    assert not found, f"{reason}:\n" + "\n".join(found)


def test_fields_are_named_and_docstrings_left_out() -> None:
    source = '"""A docstring of this."""\nx = f"{rate:,.0f} images/s of {self.name}" + "and more words"\nd["a key"]\n'
    assert list(of_python(source)) == ["{rate} images/s of {name}", "and more words", "a key"]


def test_templates_comments_and_patterns_of_typescript() -> None:
    source = """// it's a comment
const a = `${count} of ${one('in it')}`; /* 'no' */ const b = /it's \\/ "x"/; const c = "Don't stop";
"""
    assert list(of_typescript(source)) == ["{count} of {one}", "in it", "Don't stop"]


def test_texts_of_a_template() -> None:
    source = '<p title="All of it">{# no #}Next: {{ advice | e }}</p>{% if a == "b c" %}<b>two words</b>{% endif %}'
    assert [text for text in of_template(source) if is_prose(text)] == ["All of it", "Next: {e}", "two words"]


@pytest.mark.parametrize(
    "text", ["cpu/{core}/busy", "SELECT a FROM b", "km-row km-open", "0 {RIGHT}px 0", "a:b", "import x as y"]
)
def test_code_is_no_prose(text: str) -> None:
    assert not is_prose(text)
