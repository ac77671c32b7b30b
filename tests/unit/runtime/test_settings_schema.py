"""JupyterLab's settings (extension/schema/plugin.json) offer what the kernel takes, and the same defaults."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kernel_monitor.errors import SessionError
from kernel_monitor.runtime.settings import HISTORY_S, INTERVAL_S, Settings
from kernel_monitor.store.charts import CHART_IDS

SCHEMA = Path(__file__).resolve().parents[3] / "extension" / "schema" / "plugin.json"


def _properties() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))["properties"]
    return found


def test_limits_charts_and_defaults_are_the_kernels() -> None:
    properties = _properties()
    assert (properties["interval"]["minimum"], properties["interval"]["maximum"]) == INTERVAL_S
    assert (properties["history"]["minimum"], properties["history"]["maximum"]) == HISTORY_S
    assert properties["charts"]["items"]["enum"] == list(CHART_IDS)
    default = {name: entry["default"] for name, entry in _properties().items()}
    kernel = Settings()
    assert default.pop("statusBar") is True
    assert default.pop("recordingFolder") == ""  # the kernel's None
    assert kernel.changed(price=default.pop("price")).price is None
    assert default == {
        "interval": kernel.interval,
        "history": kernel.history,
        "charts": list(kernel.charts),
        "recording": kernel.record,
    }
    assert kernel.changed(charts=_properties()["charts"]["items"]["enum"]).charts == CHART_IDS


@pytest.mark.parametrize(
    "text",
    ["", " ", "0", "2.50", "2,5 €", "$2.50", "98.32 USD/h", ".5 CHF per hour", "+1", "1.", "-1", "$1 €", "2,500",
     "cheap", "1 2", "€", "2.50 €/week", "1.2.3", "CURRENCIES 1", "1 a-b"],
)  # fmt: skip
def test_the_editor_takes_the_prices_that_the_kernel_takes(text: str) -> None:
    pattern = _properties()["price"]["pattern"]
    try:
        Settings().changed(price=text)
    except SessionError:
        assert re.search(pattern, text) is None
    else:
        assert re.search(pattern, text)
