"""A machine of 256 cores and 8 GPUs at 10 Hz: what the page does with it, and what it costs the browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from benchmarks import page
from benchmarks.page import Meter

from .lab import CELL, Lab, Server

CORES, GPUS = 256, 8
SPARE = 3  # a loaded machine's processor does less in a second of its own time than an idle one's
SECONDS, HIDDEN_SECONDS = 5.0, 3.0
RUN = "import os, time\nwhile not os.path.exists('end'): time.sleep(0.1)"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with page.large_machine(tmp_path_factory.mktemp("large"), CORES, GPUS) as running:
        yield running


@pytest.fixture
def large(browser: Browser, machine: Server) -> Iterator[Lab]:
    with Lab(browser, machine, width=page.WIDTH, height=page.HEIGHT) as lab:
        yield lab


def test_costs_and_accounts(large: Lab) -> None:
    result = page.measure(large, seconds=SECONDS, hidden_seconds=HIDDEN_SECONDS, interval=0.1, settle=2.0)
    assert result.visible.thread <= SPARE * page.BAR_VISIBLE_MS, result
    assert result.hidden.thread <= SPARE * page.BAR_HIDDEN_MS, result
    assert result.heap_after - result.heap_before <= page.BAR_HEAP_MB, result
    assert result.draws > 0.4, result  # they do not stand still
    accounts = result.accounts
    assert accounts.unaccounted == 0, accounts
    assert accounts.gone == 0, accounts
    # Not only counted: the charts have every row.
    assert accounts.held == accounts.sent, accounts
    assert accounts.received > (SECONDS - 1) * 10 / SPARE, accounts


def show(lab: Lab, name: str) -> None:
    (lab.server.root / "end").unlink(missing_ok=True)
    lab.open(lab.server.notebook(name, page.SHOW.format(interval=0.1), RUN))
    lab.run_all()
    lab.wait_running(CELL)
    lab.page.evaluate(f"() => document.querySelector({CELL!r}).scrollIntoView()")


def _painted(lab: Lab, figure: str, times: int) -> None:
    """Wait until that figure of the dashboard has been painted so many times in all."""
    lab.until(
        CELL,
        "monitor.feed.sight.figures.find((figure) => figure.model.name === argument[0])._render_count >= argument[1]",
        [figure, times],
    )


def test_charts_show_the_whole_machine_and_rest_out_of_sight(large: Lab) -> None:
    show(large, "rest.ipynb")
    large.until(CELL, f"monitor.newestTileColumn('cpu')?.filter((value) => value < 255).length === {CORES}")
    metrics = Meter(large)
    large.page.wait_for_timeout(3000)  # the charts' own layout
    before, drawn = metrics.metrics(), large.monitor(CELL, "monitor.feed.draws.count")
    large.until(CELL, "monitor.feed.draws.count >= argument + 8", drawn)
    after, more = metrics.metrics(), large.monitor(CELL, "monitor.feed.draws.count") - drawn
    # Left to itself, each of the figures makes the browser lay the page out anew whenever it is painted.
    layouts = (after["LayoutCount"] - before["LayoutCount"]) / more
    # One for the drawing and one for the texts, with room for those that come between drawings on a busy machine.
    assert layouts < 3.5, f"{layouts:.1f} layouts for each drawing"

    # As in a notebook that is scrolled until only the dashboard's upper edge is left.
    paints = """Object.fromEntries(
        monitor.feed.sight.figures.map((figure) => [figure.model.name, figure._render_count]))"""
    large.page.evaluate(
        f"""() => {{ const panel = document.querySelector({CELL!r});
            panel.style.cssText = 'height: 420px; overflow: hidden'; }}"""
    )
    large.page.wait_for_timeout(1500)
    first = large.monitor(CELL, paints)
    _painted(large, "cpu", first["cpu"] + 5)
    second = large.monitor(CELL, paints)
    assert second["gpu"] == first["gpu"], (first, second)
    large.page.evaluate(f"() => {{ document.querySelector({CELL!r}).style.cssText = ''; }}")
    _painted(large, "gpu", second["gpu"] + 1)
    (large.server.root / "end").touch()
