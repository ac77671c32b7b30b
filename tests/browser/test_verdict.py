"""Verdict, Diagnose, Profile, marks and the price, as a person finds them in a cell and in the sidebar."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from .accessibility import serious
from .lab import CELL, SIDEBAR, Lab, Server
from .scenes import HEAVY_LOOP, HEAVY_SETUP

BUTTON = ".km-toolbar-button"
TABLE = "Measured in this loop"
DIAGNOSED_MS = 150_000
"""Three engines of 8 s each and their change-overs take a third of it on a quiet machine."""
# Cheaper with DALI, unlike the chain of the training; a second instead of ten, for the test's sake.
LIGHT_LOOP = """\
from kernel_monitor.runtime import current_verdict
current_verdict.BOUND_S = 1.0
normal = transforms.Normalize((0.5,) * 3, (0.25,) * 3)
chain = [transforms.RandomResizedCrop(224), transforms.GaussianBlur(5), transforms.ToTensor(), normal]
data = DataLoader(ImageFolder({root!r}, transforms.Compose(chain)), batch_size=16, shuffle=True, num_workers=1)
loader = switchable(data, name="light")
while not os.path.exists({enough!r}):
    for images, labels in loader:
        images.mean().item()
        if os.path.exists({enough!r}):
            break
"""


# Settings are tried for a shorter time: what is tested is not what is fastest.
QUICK = "from kernel_monitor.diagnosis import tune_run\ntune_run.WINDOW_S = 0.7\n"


@pytest.fixture(scope="module")
def enough(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The loops end when it is there."""
    return tmp_path_factory.mktemp("verdict") / "enough"


@pytest.fixture(scope="module")
def training(browser: Browser, lab_server: Server, images: Path, enough: Path) -> Iterator[Lab]:
    """A page whose second cell trains, held up by its loader, until the tests are over."""
    with Lab(browser, lab_server, width=1600, height=1200) as lab:
        light = LIGHT_LOOP.format(root=str(images), enough=f"{enough}-of-it")
        cells = (QUICK + HEAVY_SETUP.format(root=str(images)), HEAVY_LOOP.format(enough=str(enough)), light)
        lab.show(*cells, seconds=150)
        lab.open_sidebar()
        lab.wait_running(SIDEBAR)
        lab.wait_for_idle()
        lab.run_cell(1)
        yield lab
        enough.touch()
        lab.wait_for_idle()


@pytest.fixture(autouse=True)
def errors_of_the_page(training: Lab) -> Iterator[None]:
    """Each test answers for what the page reported during it, the first one for the time before, too."""
    yield
    errors = list(training.errors)
    training.errors.clear()
    assert errors == []


@pytest.fixture
def cell(training: Lab) -> Locator:
    return training.dashboard(CELL)


@pytest.fixture
def sidebar(training: Lab) -> Locator:
    return training.dashboard(SIDEBAR)


def _start(dashboard: Locator, *, replay: bool = False) -> None:
    dashboard.get_by_role("button", name="Diagnose", exact=True).click()
    question = dashboard.get_by_role("alertdialog", name="Diagnose?")
    expect(question).to_contain_text("torchvision, dali-cpu and threads")
    box = question.get_by_role("checkbox")
    expect(box).not_to_be_checked()
    if replay:
        box.check()
    question.get_by_role("button", name="Run it").click()


def _fits(page: Page, where: str) -> None:
    """Nothing of the controls is wider than the dashboard."""
    over = page.evaluate(
        """(where) => {
            const dashboard = document.querySelector(where);
            const right = dashboard.getBoundingClientRect().right + 1;
            return [...dashboard.querySelectorAll('.km-controls *')]
                .filter((el) => el.checkVisibility() && el.getBoundingClientRect().right > right)
                .filter((el) => getComputedStyle(el).position !== 'absolute')
                .map((el) => el.className || el.tagName);
        }""",
        where,
    )
    assert over == []


def test_the_verdict_appears_in_both_views(training: Lab, cell: Locator, sidebar: Locator) -> None:
    for dashboard in (cell, sidebar):
        line = dashboard.locator(".km-verdict summary")
        expect(line).to_contain_text("Input-bound", timeout=60_000)
        expect(line).to_contain_text(re.compile(r"\d+ % of each step .*[\d,]+ steps"))
    cell.locator(".km-verdict summary").press("Enter")
    expect(cell.locator(".km-shares-legend")).to_contain_text("waits for data")
    expect(sidebar.locator(".km-shares-legend")).to_be_hidden()


def test_the_toolbar_tells_that_the_loop_waits_for_its_data(training: Lab) -> None:
    """With the sidebar, whose verdict it takes, and without it, when it asks the kernel itself."""
    button = training.page.locator(BUTTON)
    words = "Kernel monitor: measuring; the loop is input-bound, it waits for data"
    for shown in (True, False):
        expect(training.page.get_by_role("button", name=words)).to_be_visible(timeout=60_000)
        assert button.get_attribute("data-state") == "input-bound"
        held = _mark(training.page)
        button.evaluate("(el) => { el.dataset.state = 'running'; }")
        measured = _mark(training.page)
        assert held["shape"] != measured["shape"]
        assert held["colour"] != measured["colour"]
        button.evaluate("(el) => { el.dataset.state = 'input-bound'; }")
        training.command("application:toggle-right-area")
        if shown:
            time.sleep(4)  # the rows that the sidebar was sent are too old by then
    expect(training.page.locator(SIDEBAR)).to_be_visible()


def _mark(page: Page) -> dict[str, str]:
    found: dict[str, str] = page.locator(BUTTON).evaluate(
        """(el) => {
            const style = getComputedStyle(el, '::after');
            return { shape: style.clipPath, colour: style.backgroundColor };
        }"""
    )
    return found


def test_diagnose_measures_each_engine_and_goes_back(training: Lab, cell: Locator, sidebar: Locator) -> None:
    _start(sidebar)
    for dashboard in (cell, sidebar):
        bar = dashboard.get_by_role("progressbar", name="Diagnose")
        expect(bar).to_be_visible()
        expect(bar).to_have_attribute("aria-valuetext", re.compile(r"engine 1 of 3\), \d+ s left"))
        expect(dashboard.get_by_role("button", name="Diagnose", exact=True)).to_have_attribute("aria-disabled", "true")
    expect(cell.get_by_role("progressbar", name="Diagnose")).to_have_attribute(
        "aria-valuetext", re.compile("dali-cpu"), timeout=DIAGNOSED_MS
    )
    for where, dashboard in ((CELL, cell), (SIDEBAR, sidebar)):
        result = dashboard.locator(".km-result", has_text="Diagnose").first
        expect(result).to_be_visible(timeout=DIAGNOSED_MS)
        expect(result.locator("summary")).to_contain_text(
            re.compile(r"(torchvision|dali-cpu|threads|No engine) .*images/s")
        )
        table = result.get_by_role("table", name=TABLE)
        if not table.is_visible():
            # By key: the end of a diagnosis moves what stands here, perhaps from under a pressed mouse button.
            result.locator("summary").press("Enter")
        expect(table.get_by_role("rowheader")).to_have_text(["torchvision", "dali-cpu", "threads"])
        for row in table.get_by_role("row").all()[-3:]:
            rate, steps = (row.get_by_role("cell").nth(k).inner_text() for k in (0, -1))
            assert float(rate.split()[-1].replace(",", "")) > 0
            assert int(steps.split()[-1].replace(",", "")) >= 3
        _fits(training.page, where)
        radio = dashboard.get_by_role("radio", name="torchvision", exact=True)
        expect(radio).to_have_attribute("aria-checked", "true")
        expect(dashboard.locator(".km-wrong")).to_be_empty()


def test_tune_finds_a_setting_and_undo_brings_the_old_one_back(training: Lab, cell: Locator, sidebar: Locator) -> None:
    sidebar.get_by_role("button", name="Tune", exact=True).click()
    sidebar.get_by_role("alertdialog", name="Tune?").get_by_role("button", name="Tune").click()
    for dashboard in (cell, sidebar):
        bar = dashboard.get_by_role("progressbar", name="Tune")
        expect(bar).to_have_attribute("aria-valuetext", re.compile(r"Tune: .*torchvision, \d workers?.* s left"))
        expect(dashboard.get_by_role("button", name="Tune", exact=True)).to_have_attribute("aria-disabled", "true")
    for where, dashboard in ((CELL, cell), (SIDEBAR, sidebar)):
        result = dashboard.locator(".km-result", has_text="Tune").first
        expect(result).to_be_visible(timeout=90_000)
        expect(result.locator("summary")).to_contain_text(re.compile(r"settings.*images/s"))
        table = result.get_by_role("table", name=TABLE)
        if not table.is_visible():
            result.locator("summary").press("Enter")
        tried = table.get_by_role("rowheader").all_inner_texts()
        assert len([one for one in tried if one.startswith("torchvision, ")]) >= 2
        assert {"dali-cpu", "threads"} <= {one.split(",")[0] for one in tried}
        _fits(training.page, where)
    # The chain is heavy and DALI computes it faster: there is something to keep, and to undo.
    kept = cell.locator(".km-kept")
    expect(kept.locator("code")).to_have_text(re.compile(r"num_workers=|loader\.switch"))
    undo = sidebar.get_by_role("button", name="Undo")
    expect(undo).to_have_attribute("title", re.compile("Back to torchvision"))
    undo.press("Enter")
    for dashboard in (cell, sidebar):
        expect(dashboard.get_by_role("button", name="Undo")).to_be_hidden()
        radio = dashboard.get_by_role("radio", name="torchvision", exact=True)
        expect(radio).to_have_attribute("aria-checked", "true", timeout=60_000)


def test_cancel_in_the_other_view_goes_back_at_once(cell: Locator, sidebar: Locator) -> None:
    tuned = cell.locator(".km-result", has_text="Tune").count() > 0  # by the test before, unless this one runs alone
    _start(cell)
    cancel = sidebar.get_by_role("button", name="Cancel: Diagnose")
    cancel.focus()
    cancel.press("Enter")
    for dashboard in (cell, sidebar):
        expect(dashboard.locator(".km-outcome")).to_contain_text("cancelled")
        expect(dashboard.get_by_role("progressbar", name="Diagnose")).to_be_hidden()
        if tuned:
            expect(dashboard.locator(".km-result", has_text="Tune").first).to_be_visible()  # what was found before
    expect(sidebar.get_by_role("button", name="Diagnose", exact=True)).to_be_focused()


def test_profile_a_mark_and_a_price(training: Lab, cell: Locator, sidebar: Locator) -> None:
    sidebar.get_by_role("button", name="Profile 10 steps").click()
    result = cell.locator(".km-result", has_text="Profile").last
    expect(result).to_be_visible(timeout=90_000)
    if not result.get_by_role("table", name="CPU operators").is_visible():
        result.locator("summary").click()
    operators = result.get_by_role("table", name="CPU operators").get_by_role("rowheader").all_inner_texts()
    assert any(name.startswith("aten::") for name in operators)
    expect(result).to_contain_text("GPU kernels:")

    cell.get_by_role("button", name="Mark…").click()
    training.page.keyboard.type("augment x12")
    training.page.keyboard.press("Enter")
    expect(cell.get_by_role("button", name="Marked")).to_be_focused()
    training.until(SIDEBAR, "monitor.source.events.some((event) => event.label === 'augment x12')")

    sidebar.get_by_role("button", name="Charts").click()
    price = sidebar.get_by_label("Price per hour")
    price.fill("2.50 €")
    price.press("Enter")
    for dashboard in (cell, sidebar):
        expect(dashboard.locator(".km-cost")).to_contain_text(re.compile(r"0\.\d+ € per 1,000 images · .* per epoch"))
    price.fill("much")
    price.press("Enter")
    expect(sidebar.get_by_role("alert")).to_contain_text("number")
    sidebar.get_by_role("button", name="Dismiss").click()
    expect(price).to_have_value("2.50 €")
    price.press("Escape")


def test_nothing_moves_while_texts_change(training: Lab) -> None:
    """The buttons below the verdict stand still for some seconds of new figures, in both views."""
    for where in (CELL, SIDEBAR):  # a mark began a segment, of which there may be nothing to say yet
        verdict = training.dashboard(where).locator(".km-verdict")
        expect(verdict.locator("summary")).to_contain_text("Input-bound", timeout=60_000)
        expect(training.dashboard(where).locator(".km-verdict-body .km-gains > li").first).to_be_attached()
    moves = training.page.evaluate(
        """(places) => new Promise((resolve) => {
            const rows = places.map((where) => document.querySelector(`${where} .km-actions`));
            const at = (el) => el.getBoundingClientRect().top;
            const top = (el) => at(el) - at(el.closest('.km-dashboard'));
            const words = (el) => el.closest('.km-controls').innerText.split('1 min')[0];
            const verdict = (el) => el.closest('.km-controls').querySelector('.km-verdict').textContent;
            let seen = rows.map(() => ({}));
            let until = performance.now() + 4000;
            const patience = performance.now() + 60000;
            const look = () => {
                // The verdict of before the mark was waited for: what is young has nothing to say yet.
                if (rows.some((row) => verdict(row).includes('too few to judge')) && performance.now() < patience) {
                    seen = rows.map(() => ({}));
                    until = performance.now() + 4000;
                } else {
                    rows.forEach((row, i) => { seen[i][Math.round(top(row))] ??= words(row); });
                }
                if (performance.now() < until) requestAnimationFrame(look);
                else resolve(seen);
            };
            look();
        })""",
        [CELL, SIDEBAR],
    )
    print(json.dumps(moves, indent=1))
    assert [len(one) for one in moves] == [1, 1]


def test_the_palette_has_it(training: Lab, sidebar: Locator) -> None:
    training.command("kernel-monitor:mark")
    dialog = training.page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("from the palette")
    dialog.get_by_role("button", name="Set the mark").click()
    training.until(SIDEBAR, "monitor.source.events.some((event) => event.label === 'from the palette')")
    training.command("kernel-monitor:diagnose")
    dialog = training.page.get_by_role("dialog")
    expect(dialog.get_by_role("checkbox")).not_to_be_checked()
    dialog.get_by_role("button", name="Diagnose").click()
    expect(sidebar.get_by_role("progressbar", name="Diagnose")).to_be_visible()
    sidebar.get_by_role("button", name="Cancel: Diagnose").click()
    expect(sidebar.locator(".km-outcome")).to_contain_text("cancelled")


def test_a_narrow_sidebar_holds_everything(training: Lab, sidebar: Locator) -> None:
    training.page.set_viewport_size({"width": 820, "height": 1200})
    try:
        training.page.wait_for_function(
            "(where) => document.querySelector(where).getBoundingClientRect().width < 320", arg=SIDEBAR
        )
        for details in sidebar.locator(".km-insight details").all():
            details.evaluate("(el) => { el.open = true; }")
        _fits(training.page, SIDEBAR)
    finally:
        training.page.set_viewport_size({"width": 1600, "height": 1200})


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_axe_finds_nothing_serious_in_either_view(training: Lab, theme: str) -> None:
    training.command("apputils:change-theme", {"theme": theme})
    light = str("Light" in theme).lower()
    training.page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")
    for where in (CELL, SIDEBAR):
        for details in training.dashboard(where).locator("details").all():
            details.evaluate("(el) => { el.open = true; }")
        assert serious(training.page, where) == []
    for where in (BUTTON, ".km-sidebar-tab"):
        assert serious(training.page, where) == []


def test_an_engine_is_offered_in_both_views_and_a_no_is_for_both(
    training: Lab, cell: Locator, sidebar: Locator, enough: Path
) -> None:
    enough.touch()
    training.wait_for_idle()
    training.run_cell(2)
    light = Path(f"{enough}-of-it")
    try:
        _offered(training, cell, sidebar)
    finally:
        light.touch()


def _offered(training: Lab, cell: Locator, sidebar: Locator) -> None:
    for where, dashboard in ((CELL, cell), (SIDEBAR, sidebar)):
        dashboard.locator(".km-status").scroll_into_view_if_needed()  # out of sight it rests
        offer = dashboard.locator(".km-offer[data-engine=dali-cpu]")
        expect(offer).to_contain_text("dali-cpu is ready", timeout=120_000)
        expect(offer.get_by_role("button", name="Switch to dali-cpu")).to_be_visible()
        assert serious(training.page, where) == []
        _fits(training.page, where)
    no = cell.get_by_role("button", name="No thanks")
    no.focus()
    no.press("Enter")
    for dashboard in (cell, sidebar):
        expect(dashboard.get_by_role("button", name="No thanks")).to_be_hidden()
        radios = dashboard.get_by_role("radiogroup", name=re.compile("light"))
        expect(radios.get_by_role("radio", name="torchvision", exact=True)).to_have_attribute("aria-checked", "true")
    radios = cell.get_by_role("radiogroup", name=re.compile("light"))
    expect(radios.get_by_role("radio", name="torchvision", exact=True)).to_be_focused()
