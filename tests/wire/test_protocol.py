"""Golden messages are of the types of the protocol."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import jsonschema
import pytest

from .schema import for_page, validate

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("golden")
TYPES = {
    "frame": "Frame",
    "glance": "Glance",
    "notice": "Notice",
    "reply-bokehjs": "BokehReply",
    "reply-configure": "ConfigureReply",
    "reply-document": "DocumentReply",
    "reply-error": "ErrorReply",
    "reply-export": "ExportReply",
    "reply-glance": "GlanceReply",
    "reply-hello": "HelloReply",
    "reply-history": "HistoryReply",
    "reply-open": "OpenReply",
    "reply-sessions": "SessionsReply",
    "reply-set": "LoaderReply",
    "reply-sidebar": "Reply",
    "reply-subscribe": "SubscribeReply",
    "reply-subscribe-recorded": "SubscribeReply",
    "reply-switch": "LoaderReply",
    "reply-unsubscribe": "Reply",
}


def test_every_golden_message_has_a_type() -> None:
    names = {path.stem for path in GOLDEN.glob("*.json")}
    assert {name for name in names if not name.startswith("request-")} == TYPES.keys() | {"analysis"}


@pytest.mark.parametrize(("name", "kind"), TYPES.items())
def test_golden_messages_are_of_their_types(name: str, kind: str) -> None:
    validate(json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))["content"], kind)


def test_the_golden_analysis_is_of_its_types() -> None:
    content = json.loads((GOLDEN / "analysis.json").read_text("utf-8"))["content"]
    frame = json.loads((GOLDEN / "frame.json").read_text("utf-8"))["content"]
    found = {name: content[name] for name in ("verdict", "offers", "diagnosing", "profiling")}
    validate({**frame, **found}, "Frame")
    kinds = {"diagnosis": "DiagnosisResult", "profile": "ProfileResult"}
    for event in content["events"]:
        validate(event["result"], kinds[event["kind"]])


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("request-*.json")), ids=lambda path: path.stem)
def test_golden_requests_are_requests(path: Path) -> None:
    validate(json.loads(path.read_text("utf-8"))["content"], "Request")


def test_a_field_that_is_missing_or_unknown_is_an_error() -> None:
    content = json.loads((GOLDEN / "reply-glance.json").read_text("utf-8"))["content"]
    with pytest.raises(jsonschema.ValidationError, match="'lease' is a required property"):
        validate({name: value for name, value in content.items() if name != "lease"}, "GlanceReply")
    with pytest.raises(jsonschema.ValidationError, match="'extra' was unexpected"):
        validate({**content, "extra": 1}, "GlanceReply")


def test_the_page_has_the_types_of_the_kernel() -> None:
    """`make protocol` writes them."""
    made = subprocess.run(
        ["node", str(ROOT / "widgets" / "protocol.mjs")],
        input=for_page(),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=60,
    )
    assert made.stdout == (ROOT / "widgets" / "src" / "stream" / "protocol.ts").read_text("utf-8")
