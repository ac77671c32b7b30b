"""JupyterLab's settings (extension/schema/plugin.json) offer what the kernel takes, and the same defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernel_monitor.live.settings import HISTORY_S, INTERVAL_S, Settings
from kernel_monitor.store.charts import CHART_IDS

SCHEMA = Path(__file__).resolve().parents[2] / "extension" / "schema" / "plugin.json"


def _properties() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))["properties"]
    return found


def test_limits_and_charts_are_the_kernels() -> None:
    properties = _properties()
    assert (properties["interval"]["minimum"], properties["interval"]["maximum"]) == INTERVAL_S
    assert (properties["history"]["minimum"], properties["history"]["maximum"]) == HISTORY_S
    assert properties["charts"]["items"]["enum"] == list(CHART_IDS)


def test_defaults_are_the_kernels() -> None:
    default = {name: entry["default"] for name, entry in _properties().items()}
    kernel = Settings()
    assert default.pop("statusBar") is True
    assert default.pop("recordingFolder") == ""  # the kernel's None
    assert default == {
        "interval": kernel.interval,
        "history": kernel.history,
        "charts": list(kernel.charts),
        "recording": kernel.record,
    }
    assert kernel.changed(charts=_properties()["charts"]["items"]["enum"]).charts == CHART_IDS
