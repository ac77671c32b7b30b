"""What the product says to people, as a list: it is the code's, and no sentence in it has to be read twice."""

from __future__ import annotations

import re
import shutil

import pytest

from tests import sentences

FACTOR = "say faster or slower, with a factor (analysis.results.faster)"
ONE_NO = "say it without a double negation"
FORBIDDEN = {
    r"(?:step|of the) time saved|of the step time": FACTOR,
    r"% (?:shorter|longer) steps|steps \S+ (?:% )?(?:shorter|longer)": FACTOR,
    r"looked and did not|no wait for data:|missing the gain|would not be faster|not one thing": "say what is so",
    r"\b[Nn]othing (?:is|was|has|can|that)\b.* not\b|\bnot without\b|\bnot un\w+able\b": ONE_NO,
    r"\bcannot \w+ (?:unless|without)\b|\b[Nn]o \w+ (?:is|was|has) (?:no|not|never)\b": ONE_NO,
    r"\bnever not\b|\bnot never\b|\bnone (?:is|are|was|were) not\b": ONE_NO,
    r"next to nothing|brings nothing|the other engines\b|that stands\b": "say what is so",
    r"is not settled": "say what is known, and what to measure",
    r"\bNobody\b|\bone's own\b": "name who does it",
}
"""Patterns that no sentence may have, and what to do instead."""


@pytest.fixture(scope="module")
def text() -> str:
    if shutil.which("node") is None or not (sentences.ROOT / "node_modules" / "typescript").exists():
        pytest.skip("the page's sentences are found by TypeScript's parser: node and node_modules are missing")
    return sentences.collect()


def test_the_list_is_what_the_code_says(text: str) -> None:
    kept = sentences.FILE.read_text(encoding="utf-8")
    there, found = set(sentences.sentences(kept)), set(sentences.sentences(text))
    assert text == kept, (
        f"run `{sentences.COMMAND}` and read the difference: new {sorted(found - there)[:5]}, "
        f"gone {sorted(there - found)[:5]}"
    )


def test_every_module_that_speaks_to_people_is_in_it() -> None:
    modules = {module for module, _ in sentences.sentences(sentences.FILE.read_text(encoding="utf-8"))}
    for part in ("advice.py", "verdict.py", "gains.py", "trials.py", "answers.py", "backends.py", "cli.py"):
        assert any(module.endswith(part) for module in modules), part
    assert any(module.startswith("widgets/src/") for module in modules)
    assert any(module.startswith("extension/src/") for module in modules)


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_sentence_has_to_be_read_twice(pattern: str) -> None:
    said = sentences.sentences(sentences.FILE.read_text(encoding="utf-8"))
    wrong = [f"{module}: {sentence}" for module, sentence in said if re.search(pattern, sentence)]
    assert wrong == [], FORBIDDEN[pattern]


@pytest.mark.parametrize(
    "sentence",
    [
        "−100 to −9 % of the step time saved",
        "no wait for data: 48 to 90 % of the step time saved",
        "10 looked and did not",
        "torchvision would not be faster here",
        "Nothing was found that is not known",
    ],
)
def test_the_patterns_find_what_was_said_once(sentence: str) -> None:
    assert any(re.search(pattern, sentence) for pattern in FORBIDDEN)
