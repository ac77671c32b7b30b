"""Every figure of one session agrees with every other: on the page, in its tooltips, in text answers, in the report.

The last cell prints the analysis as JSON. Each figure of a loop that is said anywhere must be one of those of its
segments, rounded, and what a switch brought must be the same two rates everywhere.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, expect

from kernel_monitor.analysis.changes import figure, percent
from tests.loaders.conftest import make_folder

from .lab import CELL, IMPORTS, SHOW, SIDEBAR, Lab
from .test_ranks import LAUNCHER, SWITCHING
from .test_report import opened

ROOT = Path(__file__).parents[2]
TEXTS = """(where) => {
  const root = where === null ? document.body : document.querySelector(where);
  for (const details of root.querySelectorAll('details')) details.open = true;
  for (const button of root.querySelectorAll('[aria-expanded=false].km-loader-line')) button.click();
  const shown = (el) => el.checkVisibility({ visibilityProperty: true });
  return [root.innerText, ...[...root.querySelectorAll('[title]')].filter(shown).map((el) => el.title)];
}"""
"""What can be read in a place with everything unfolded, and its tooltips."""
IN_ANSWERS = "print(monitor.comparison())\n%monitor status\n%monitor verdict\n%monitor export {report}"
FACTS = """\
import json
from kernel_monitor.analysis import analyse
snapshot = monitor.snapshot()
print("FACTS" + json.dumps({"analysis": analyse(snapshot).to_json(), "loaders": snapshot.loaders}, default=str))"""
TRAINING = f"""{IMPORTS}
torch.set_num_threads(1)
crop = transforms.Compose([transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor()])
train = switchable(DataLoader(ImageFolder({{root!r}}, crop), batch_size=8, shuffle=True, num_workers=1), name="train")
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                            torch.nn.Flatten(), torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def one_epoch():
    batches = samples = 0
    for images, labels in train:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        batches += 1; samples += len(labels)
    return batches, samples

def evaluate(loader):
    return sum(len(labels) for _, labels in loader)  # it only counts
{SHOW}"""
LOOP = """\
whole = transforms.Compose([transforms.Resize((64, 64)), transforms.ToTensor()])
others = [switchable(DataLoader(ImageFolder({root!r}, whole), batch_size=8), name="val")][: {others}]
epochs, switched, began = 0, None, time.monotonic()
while switched is None or time.monotonic() < switched + 8 or not monitor.comparison().faster > 0:
    assert time.monotonic() < began + 150, monitor.comparison()
    batches, samples = one_epoch()
    for other in others:
        evaluate(other)
    epochs += 1
    enough = time.monotonic() > began + 8 and train.meter.totals().step_s > 5
    if enough and not train.history and train.switch_state.wanted is None:
        train.switch("dali-cpu")
    if switched is None and train.backend == "dali-cpu":
        switched = time.monotonic()
print("counted", epochs, batches, samples)"""
"""Epochs of one or two seconds; switched after 8 s; then at least 8 s more, and until there is something to compare."""
NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
RATES = re.compile(rf"{NUMBER} → {NUMBER} images/s")
FACTORS = re.compile(  # no predictions, and not of the training's own steps
    r"(?:([\w-]+)(?: ran|: measured) )?(?<!to )(?<!and )(?<!between )(?<!expected )"
    r"(?<!own steps )(?<!own steps became )"
    r"\b(\d+\.\d\d) × (faster|slower)"
)
PARTS_OF_STEP = re.compile(rf"{NUMBER} of {NUMBER} ms\b")
OF_EACH_STEP = re.compile(rf"{NUMBER} % of (?:each|the) step (?:is|was) waiting for data")
STEPS = re.compile(rf"{NUMBER} steps?\b")
EPOCHS = re.compile(rf"\bepoch {NUMBER}\b")
BATCHES = re.compile(rf"\bbatch {NUMBER} of {NUMBER}\b")
SAMPLES = re.compile(rf"{NUMBER} of {NUMBER} samples")
LATE_S = 20.0  # that a page has to show what there is


@dataclass(frozen=True)
class Session:
    """What was said of one session, by place, and its facts."""

    places: dict[str, list[str]]
    facts: dict[str, Any]
    counted: tuple[int, int, int]  # epochs of the training; batches and samples of its last one, by the loop itself

    @property
    def segments(self) -> list[dict[str, Any]]:
        return list(self.facts["analysis"]["segments"])

    def found(self, pattern: re.Pattern[str]) -> Iterable[tuple[str, tuple[str, ...]]]:
        """Each place that says something of that form, with its figures."""
        for place, texts in self.places.items():
            for text in texts:
                for match in pattern.finditer(re.sub(r"\s+", " ", text)):
                    yield f"{place}: …{match.string[max(0, match.start() - 60) : match.end() + 40]}…", match.groups()


def plain(number: str) -> float:
    return float(number.replace(",", ""))


def check(session: Session, now: Callable[[], dict[str, list[str]]] = dict) -> None:
    """Fail on any figure that is none of the session's, or that another place says otherwise.

    `now` reads anew the places that are kept up to date, which is late on a busy machine: they have some seconds.
    """
    until = time.monotonic() + LATE_S
    while (wrong := disagreeing(session)) and time.monotonic() < until:
        session.places.update(now())
    lines = [f"{one['key']}: {one['rate']} images/s, {one}" for one in session.segments]
    assert wrong == [], "\n".join([*wrong, *lines])
    # The loop's own counts.
    states = session.facts["loaders"]
    (train,) = (state for state in states if state["name"] in ("train", "train_loader"))
    assert (train["epoch"] + 1, train["batch"], train["samples"]) == session.counted
    done = [epoch for epoch in session.facts["analysis"]["epochs"] if epoch["name"] == train["name"]]
    assert len(done) == session.counted[0]
    assert {(epoch["batches"], epoch["samples"]) for epoch in done} == {session.counted[1:]}


def disagreeing(session: Session) -> list[str]:
    """Return each figure that is none of the session's."""
    segments, changes = session.segments, session.facts["analysis"]["changes"]
    by_key = {segment["key"]: segment for segment in segments}
    for segment in segments:
        assert 0 <= segment["wait"] <= segment["step"], segment
        assert segment["rate"] * segment["step"] / 1e3 == pytest.approx(
            segment["samples"] / segment["batches"], rel=1e-3
        )
    sides = [(by_key[change["before"]], by_key[change["after"]]) for change in changes]
    rates = {(figure(before["rate"]), figure(after["rate"])) for before, after in sides}
    wrong = [said for said, pair in session.found(RATES) if pair not in rates]
    for said, (engine, number, word) in session.found(FACTORS):
        # Where an engine is named, it is that one beside the other.
        ratios = [
            before["rate"] / after["rate"] if engine == before["backend"] else after["rate"] / before["rate"]
            for before, after in sides
        ]
        if not any(f"{max(one, 1 / one):.2f}" == number and (one > 1) == (word == "faster") for one in ratios):
            wrong.append(said)
    times = {figure(segment["step"]): segment for segment in segments}
    for said, (part, step) in session.found(PARTS_OF_STEP):
        if step not in times or plain(part) > plain(step):
            wrong.append(said)
    shares = {percent(segment["wait"] / segment["step"]) for segment in segments}
    wrong += [said for said, (share,) in session.found(OF_EACH_STEP) if share not in shares]
    states = session.facts["loaders"]
    epochs = {f"{epoch + 1:,}" for state in states for epoch in range(state["epoch"] + 1)}
    wrong += [said for said, (epoch,) in session.found(EPOCHS) if epoch not in epochs]
    batches = {(f"{state['batch']:,}", f"{state['batches']:,}") for state in states if state["batches"]}
    wrong += [said for said, pair in session.found(BATCHES) if pair not in batches]
    whole = {f"{state['planned']:,}" for state in states if state["planned"]}
    wrong += [said for said, pair in session.found(SAMPLES) if pair[0] != pair[1] or pair[0] not in whole]
    return wrong


def headline(session: Session) -> None:
    """What the switch brought is said in each place, in the same figures."""
    best = session.facts["analysis"]["headline"]
    sides = [next(one for one in session.segments if one["key"] == best[side]) for side in ("before", "after")]
    wanted = tuple(figure(side["rate"]) for side in sides)
    for place in session.places:
        said = [pair for text, pair in session.found(RATES) if text.startswith(place)]
        assert wanted in said, (place, wanted, said, session.places[place])


def unfolded(lab: Lab) -> dict[str, list[str]]:
    """Everything that can be read in the cell and in the sidebar once the loops have ended."""
    lab.open_sidebar()
    lab.wait_running(SIDEBAR)
    if (cell := lab.page.locator(CELL)).count():
        cell.evaluate("(el) => el.scrollIntoView()")  # out of sight it is not kept up to date
    lab.page.wait_for_timeout(3_000)  # the last verdict and strip: they come every second or two
    found: dict[str, list[str]] = {}
    for _ in range(2):  # what is unfolded is filled a moment later
        found = {name: lab.page.evaluate(TEXTS, where) for name, where in (("cell", CELL), ("sidebar", SIDEBAR))}
        lab.page.wait_for_timeout(500)
    return found


def printed(lab: Lab, cell: int) -> str:
    """A cell's output. What is far out of sight is not rendered, and has a content but no inner text."""
    return lab.page.locator(".jp-Notebook .jp-CodeCell").nth(cell).locator(".jp-OutputArea").first.text_content() or ""


def reported(browser: Browser, report: Path) -> list[str]:
    with opened(browser, report) as seen:
        texts: list[str] = seen.page.evaluate(TEXTS, None)
        assert seen.complaints == []
    return texts


def run_to(lab: Lab, cell: int, word: str, seconds: float = 240) -> None:
    """Wait until a cell has printed something and the kernel is idle."""
    lab.wait_printed(cell, word, seconds)
    lab.wait_for_idle(seconds)
    assert word in lab.output(cell)


@pytest.mark.parametrize("others", [0, 1], ids=["one-loader", "two-loaders"])
def test_no_two_figures_disagree(new_lab: Lab, browser: Browser, tmp_path: Path, others: int) -> None:
    root, report = str(make_folder(tmp_path / "photos", 400)), tmp_path / "run.html"
    cells = (TRAINING.format(root=root), LOOP.format(root=root, others=others), IN_ANSWERS.format(report=report), FACTS)
    new_lab.show(*cells)
    new_lab.wait_for_idle()
    for cell, word in enumerate(("counted", "run.html", "FACTS"), 1):
        new_lab.run_cell(cell)
        run_to(new_lab, cell, word)
    epochs, batches, samples = map(int, printed(new_lab, 1).split("counted")[1].split()[:3])
    places = {**unfolded(new_lab), "comparison": [printed(new_lab, 2)], "report": reported(browser, report)}
    session = Session(places, json.loads(printed(new_lab, 3).split("FACTS", 1)[1]), (epochs, batches, samples))
    check(session, lambda: unfolded(new_lab))
    headline(session)
    assert new_lab.errors == []


def test_the_quickstart_ends_on_what_its_switch_brought(new_lab: Lab, browser: Browser, tmp_path: Path) -> None:
    """Its last switch is that of a data set of one's own, in an evaluation: the training's says more."""
    book = nbformat.read(ROOT / "example_notebooks" / "quickstart.ipynb", as_version=4)
    report = tmp_path / "run.html"
    code = [cell.source for cell in book.cells if cell.cell_type == "code"]
    code[0] = f"import os\nos.environ['KERNEL_MONITOR_DEMO_IMAGES'] = '192'\n{code[0]}"
    cells = [*code, IN_ANSWERS.format(report=report), FACTS]
    new_lab.open(new_lab.server.notebook("quickstart-agreement.ipynb", *cells))
    new_lab.run_all()
    run_to(new_lab, len(cells) - 1, "FACTS", 400)
    texts = "".join(printed(new_lab, cell) for cell in range(len(code)))
    epochs = re.findall(r"epoch \d+: ([\d,]+) samples in (\d+) batches", texts)
    counted = (len(epochs), int(epochs[-1][1]), int(epochs[-1][0].replace(",", "")))
    places = {
        "sidebar": unfolded(new_lab)["sidebar"],  # the cell is out of sight, and not in the page then
        "comparison": [printed(new_lab, len(cells) - 2)],
        "report": reported(browser, report),
        "last cell": [printed(new_lab, len(code) - 1)],
    }
    session = Session(places, json.loads(printed(new_lab, len(cells) - 1).split("FACTS", 1)[1]), counted)
    check(session, lambda: {"sidebar": unfolded(new_lab)["sidebar"]})
    headline(session)
    assert session.facts["analysis"]["headline"]["after"].startswith("train_loader/")
    assert "train_loader: dali-cpu took over from torchvision" in session.places["last cell"][0]
    assert new_lab.errors == []


def test_a_job_of_two_ranks_has_one_engine_and_one_count(new_lab: Lab, browser: Browser, tmp_path: Path) -> None:
    photos, out, report = make_folder(tmp_path / "photos", 99), tmp_path / "out", tmp_path / "run.html"
    out.mkdir()
    (out / "go").touch()
    job = LAUNCHER + SWITCHING.format(root=ROOT, photos=photos, out=out)
    dashboard = new_lab.show(f"from kernel_monitor import monitor\n{SHOW}", job, IN_ANSWERS.format(report=report))
    new_lab.run_cell(1)
    engines = dashboard.get_by_role("radiogroup", name="Loader train · job 1")
    dali = engines.get_by_role("radio", name="dali-cpu", exact=True)
    expect(dashboard.get_by_text("torchvision on 2 ranks")).to_be_visible(timeout=90_000)
    dali.click()
    expect(dashboard.get_by_text("dali-cpu on 2 ranks").first).to_be_visible(timeout=60_000)
    expect(engines.locator("[aria-checked=true]")).to_have_text(["dali-cpu"])
    expect(dashboard.get_by_text("100 samples, each once", exact=False)).to_be_visible()
    running = Session(unfolded(new_lab), {}, (0, 0, 0))
    (out / "enough").touch()
    new_lab.wait_for_idle(120)
    new_lab.run_cell(2)
    run_to(new_lab, 2, "run.html")
    places = {**unfolded(new_lab), "status": [printed(new_lab, 2)], "report": reported(browser, report)}
    session = Session(places, {}, (0, 0, 0))
    engine = re.compile(r"(?<!→ )\b(torchvision|dali|dali-cpu|dali-gpu|threads|synthetic|ray) on 2 ranks")
    said = [*running.found(engine), *session.found(engine)]
    assert {place.split(":")[0] for place, _ in said} >= {"cell", "sidebar", "report"}
    assert {name for _, (name,) in said} == {"dali-cpu"}, said
    # Each rank has 50 of the 99 samples, in batches of 8; one comes twice, as padding.
    wrong = [text for text, pair in session.found(SAMPLES) if pair not in (("100", "100"), ("99", "99"))]
    wrong += [text for text, pair in session.found(BATCHES) if pair not in (("7", "7"), ("14", "14"))]
    wrong += [text for text, pair in session.found(PARTS_OF_STEP) if plain(pair[0]) > plain(pair[1])]
    assert wrong == [], "\n".join(wrong)
    assert new_lab.errors == []
