"""The rules' document says what the rules are."""

from __future__ import annotations

import re

from kernel_monitor.analysis.rules import RULES
from tests.unit.rules_table import DOCUMENT, text


def test_the_document_is_written_from_the_rules() -> None:
    assert DOCUMENT.read_text("utf-8") == text(), "run: python -m tests.unit.rules_table"


def test_every_rule_has_words_and_sources() -> None:
    for name, rule in RULES.items():
        assert name == rule.id
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
        assert rule.title
        assert rule.source.endswith(".")
        assert all(one.meaning for one in rule.parameters.values())
        assert (rule.of_segment is None) != (rule.of_session is None)


def test_all_published_rules_and_our_own_are_there() -> None:
    sources = " ".join(rule.source for rule in RULES.values())
    for published in (
        "CPUBottleneck", "IOBottleneck", "LowGPUUtilization", "BatchSize", "GPUMemoryIncrease", "LoadBalancing",
        "Dataloader", "MaxInitializationTime", "StepOutlier", "OverallSystemUsage", "OverallFrameworkMetrics",
    ):  # fmt: skip
        assert published in sources
    assert {"rank-imbalance", "memory-creep", "step-period", "too-many-workers", "saturated-core"} <= set(RULES)
