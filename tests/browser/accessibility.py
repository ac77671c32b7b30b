"""What axe-core finds serious in a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

SOURCE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = """async (scope) => (await axe.run(scope ?? document, { resultTypes: ['violations'] })).violations
  .filter((one) => ['serious', 'critical'].includes(one.impact))
  .map((one) => `${one.id}: ${one.nodes.map((node) => node.html).slice(0, 3).join(' ')}`)"""


def serious(page: Page, scope: str | None = None) -> Any:
    """The violations that are serious or critical; `scope`: the elements that are looked at, as a CSS selector."""
    page.evaluate(SOURCE.read_text(encoding="utf-8"))
    return page.evaluate(SERIOUS, scope)
