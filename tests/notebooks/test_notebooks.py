"""Every example notebook: clean as it is kept, and run headless, from the first cell to the last, as a user would."""

from __future__ import annotations

import json
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from torchvision.datasets import ImageFolder

from kernel_monitor.demo import demo_data

FOLDER = Path(__file__).parents[2] / "example_notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MARK = "KERNEL_MONITOR_TEST_RUN"
IMAGES = 192
DATA = f"data/demo-{IMAGES}"  # where most notebooks make the same pictures
TIMED_IMAGES = 128


@dataclass(frozen=True)
class Run:
    """A notebook after it ran in an empty folder, its kernel ended."""

    folder: Path
    notebook: Any
    said_by_kernel: str  # what the kernel and its children wrote to their own stderr
    left: list[psutil.Process]  # processes that the kernel started and that outlived it by 10 s

    @property
    def outputs(self) -> list[Any]:
        return [output for cell in self.notebook.cells for output in cell.get("outputs", [])]

    def of_cell(self, number: str) -> str:
        """What a cell printed."""
        (cell,) = (cell for cell in self.notebook.cells if cell.id == number)
        return "".join(output.text for output in cell.outputs if output.get("name") == "stdout")

    @property
    def printed(self) -> str:
        return "".join(output.text for output in self.outputs if output.get("name") == "stdout")


def marked(value: str) -> list[psutil.Process]:
    """Living processes with our mark in their environment, which children inherit and orphans keep."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # gone, or somebody else's
    return found


def executed(path: Path, parent: Path, data: Path | None) -> Run:
    """Run it; where `data` are given, they have been made before."""
    folder = parent / "a folder"
    folder.mkdir()
    if data is not None:
        shutil.copytree(data, folder / DATA)
    mark = uuid.uuid4().hex
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    last = max(number for number, cell in enumerate(notebook.cells) if cell.cell_type == "code")
    # The client sends an interrupt before it asks a kernel to end. One that has not quite left its last cell would end
    # by that, before it has ended its children.
    client.on_cell_executed = lambda cell_index, **_: time.sleep(1.0 if cell_index == last else 0.0)
    said = parent / "stderr.txt"
    with pytest.MonkeyPatch.context() as patch, said.open("w") as stderr:
        patch.setenv("KERNEL_MONITOR_DEMO_IMAGES", str(IMAGES))
        patch.setenv(MARK, mark)
        client.execute(stderr=stderr)
    deadline = time.monotonic() + 10
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return Run(folder, notebook, said.read_text(), left)


Runs = Callable[[Path], Run]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Runs a notebook when it is first asked for."""
    done: dict[Path, Run] = {}

    def run(path: Path) -> Run:
        if path not in done:
            made = (one.folder / DATA for one in done.values() if (one.folder / DATA).is_dir())
            # The quickstart always makes them itself: a test is about that.
            data = None if path.stem == "quickstart" else next(made, None)
            done[path] = executed(path, tmp_path_factory.mktemp("notebook"), data)
        return done[path]

    yield run
    for one in done.values():
        for process in one.left:
            process.kill()


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def run(request: pytest.FixtureRequest, runs: Runs) -> Run:
    return runs(request.param)


def ran(name: str) -> Any:
    """Make the fixture of a notebook that ran, named like it."""

    @pytest.fixture(name=name)
    def fixture(runs: Runs) -> Run:
        return runs(FOLDER / f"{name}.ipynb")

    return fixture


quickstart, own_pipeline, recorded_session = ran("quickstart"), ran("own_pipeline"), ran("recorded_session")
cpu_machines, published_tables, many_ranks = ran("cpu_machines"), ran("published_tables"), ran("many_ranks")
segmentation = ran("segmentation")


def test_there_are_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS if path.name == "quickstart.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_clean(path: Path) -> None:
    text = path.read_text("utf-8")
    content = json.loads(text)
    nbformat.validate(nbformat.from_dict(content))
    assert content["metadata"] == {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in content["cells"]:
        assert not cell["metadata"]
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    assert text == json.dumps(content, indent=1, ensure_ascii=False) + "\n"  # as Jupyter writes it


def test_nothing_is_said_on_stderr(run: Run) -> None:
    assert [output.text for output in run.outputs if output.get("name") == "stderr"] == []
    expected = ("[IPKernelApp]", "The samples are shared out among 2 ranks")  # the latter is our own, to be read
    said = [line for line in run.said_by_kernel.splitlines() if not any(words in line for words in expected)]
    assert said == []


def test_no_process_is_left(run: Run) -> None:
    assert run.left == []


def test_the_data_is_made_under_a_progress_bar_and_only_there(quickstart: Run) -> None:
    (root,) = (quickstart.folder / "data").iterdir()
    assert len(ImageFolder(str(root))) == IMAGES
    widgets = quickstart.notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"].values()
    bars = [one["state"] for one in widgets if one["model_name"] == "FloatProgressModel"]
    assert [(bar["value"], bar["max"], bar["bar_style"]) for bar in bars] == [(IMAGES, IMAGES, "success")]


def test_the_loader_is_swapped_once_and_nothing_is_lost(quickstart: Run) -> None:
    swaps = re.findall(
        r"^(\S+) → (\S+) at batch \d+ of epoch (\d+), ([\d.]+) s after", quickstart.printed, re.MULTILINE
    )
    assert len(swaps) == 1
    source, target, epoch, _ = swaps[0]
    assert source == "torchvision"
    assert target in ("dali-cpu", "dali-gpu")
    epochs = re.findall(
        r"^epoch (\d+): ([\d,]+) samples in (\d+) batches, .* now (\S+)$", quickstart.printed, re.MULTILINE
    )
    assert [int(number) for number, *_ in epochs] == list(range(1, len(epochs) + 1))
    assert {(int(samples), int(batches)) for _, samples, batches, _ in epochs} == {(IMAGES, IMAGES // 32)}
    engines = [engine for *_, engine in epochs]
    swapped = engines.index(target)
    assert int(epoch) == swapped + 1
    assert engines == [source] * swapped + [target] * (len(epochs) - swapped)
    assert f"last epoch: {IMAGES} of {IMAGES} samples, 0 lost, 0 doubled" in quickstart.printed


def test_training_ends_with_what_the_swap_brought(quickstart: Run) -> None:
    """One sentence, the last one of the cell, with figures that fit each other, of a loop that waited for its data."""
    *_, last = quickstart.of_cell("train").rstrip("\n").split("\n")
    number = r"([\d,.]+)"
    found = re.fullmatch(
        rf"(dali-\w+) took over from torchvision at batch \d+ of epoch \d+: {number} → {number} images/s "
        rf"\((?:about as fast, )?([\d.]+) ×(?: faster)?( slower)?.*?\), waiting for data (\d+) → (\d+) % of each step "
        rf"\({number} → {number} ms\); measured over {number} images in {number} s, then {number} in {number} s\.",
        last,
    )
    assert found is not None, last
    slower = found[5] is not None
    figures = [found[2], found[3], found[4], *found.groups()[5:]]
    before, after, factor, waited, waits, *rest = (float(one.replace(",", "")) for one in figures)
    steps, counts = rest[:2], rest[2:]
    assert (1 / factor if slower else factor) == pytest.approx(after / before, rel=0.05)
    for rate, step, images, seconds in ((before, steps[0], *counts[:2]), (after, steps[1], *counts[2:])):
        assert images % 32 == 0
        assert rate * step / 1e3 == pytest.approx(32, rel=0.05)  # the batch
        assert images / seconds == pytest.approx(rate, rel=0.1)  # seconds are rounded
    assert waits <= 100
    if found[1] == "dali-cpu":  # were the data not the bottleneck, a faster loader could not help
        assert waited >= 50


def test_the_notebook_ends_with_what_the_swap_of_its_training_brought(quickstart: Run) -> None:
    """Not with the short loop over a data set of one's own, which came last."""
    (trained,) = re.findall(
        r"dali-\w+ took over from torchvision at batch \d+ of epoch \d+", quickstart.of_cell("train")
    )
    last = quickstart.of_cell("export").rstrip("\n").split("\n")[-1]
    assert trained in last, last
    assert "images/s" in last


def test_a_dataset_of_ones_own_is_served_by_dali(quickstart: Run) -> None:
    *engines, last = quickstart.of_cell("own").rstrip("\n").split("\n")
    assert "dali-cpu     ready" in engines
    found = re.fullmatch(r"\d+% right; (.*); 0 left to its own code", last)
    assert found is not None, last
    counts = {engine: int(count) for count, engine in (part.split(" by ") for part in found[1].split(", "))}
    assert sum(counts.values()) == IMAGES
    assert max(counts, key=lambda engine: counts[engine]).startswith("dali")


@pytest.mark.alone
def test_the_first_run_makes_its_pictures_in_twenty_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(FOLDER / "quickstart.ipynb", as_version=4)
    (source,) = (cell.source for cell in notebook.cells if cell.id == "data")
    monkeypatch.delenv("KERNEL_MONITOR_DEMO_IMAGES", raising=False)
    names: dict[str, Any] = {}
    lines = re.findall(r"^(?:cores|IMAGES) = .*$", source, re.MULTILINE)
    exec("\n".join(["import os", *lines]), names)  # noqa: S102 - the notebook's own lines
    began = time.monotonic()
    demo_data(tmp_path / "set", images=TIMED_IMAGES, progress=False)
    wanted = (time.monotonic() - began) / TIMED_IMAGES * names["IMAGES"]
    print(f"{names['IMAGES']:,} pictures: {wanted:.1f} s")
    assert wanted <= 3 * 20  # three times the bar


def test_the_model_learns(quickstart: Run) -> None:
    right = [int(share) for share in re.findall(r"^epoch .* batches, (\d+)% right", quickstart.printed, re.MULTILINE)]
    assert max(right) > 25  # of ten classes


def test_the_page_is_exported(quickstart: Run) -> None:
    page = (quickstart.folder / "run.html").read_text("utf-8")
    assert len(page) > 500_000
    assert "Content-Security-Policy" in page
    assert "dali-cpu" in page or "dali-gpu" in page


def test_the_dashboard_leaves_a_summary_for_readers_without_a_kernel(quickstart: Run) -> None:
    tables = [output.data["text/html"] for output in quickstart.outputs if "text/html" in output.get("data", {})]
    assert any("<table" in table and "train" in table and "dali" in table for table in tables)


def test_workers_on_ray_take_over_and_nothing_is_lost(cpu_machines: Run) -> None:
    assert re.search(r"^ray +ready$", cpu_machines.of_cell("loader"), re.MULTILINE)
    epochs = re.findall(r"^([\d,]+) samples, now (\S+)$", cpu_machines.of_cell("train"), re.MULTILINE)
    assert {samples for samples, _ in epochs} == {str(IMAGES)}
    assert epochs[0][1] == "torchvision"
    assert epochs[-1][1] == "ray"
    assert "ray took over from torchvision at batch" in cpu_machines.of_cell("train")
    counted = cpu_machines.of_cell("compare")
    assert f"last epoch: {IMAGES} of {IMAGES} samples, 0 lost, 0 doubled" in counted
    assert re.search(r"^[12] workers on 127\.0\.0\.1, [1-9]\d* batches$", counted, re.MULTILINE)
    assert re.findall(r"([\d.]+) cents a step", cpu_machines.of_cell("cost")) == ["0.127", "0.029"]


def test_the_published_table_is_measured_with_what_was_delivered(published_tables: Run) -> None:
    table = published_tables.of_cell("table")
    assert "of 2 cells" in table  # whose predicted signs were judged
    cell = r"^(?:resnet18 · load (?:1|12))? +(torchvision|dali-\w+) +[\d.,]+ +[\d.,]+ +([\d,]+) +([\d,]+) "
    cells = re.findall(cell, table, re.MULTILINE)
    assert len(cells) == 4
    batch = 8
    assert all(int(samples.replace(",", "")) == batch * int(batches.replace(",", "")) for _, samples, batches in cells)
    assert re.search(
        r"^epoch 2: 0\.0\d+ s, 0 samples; delivered 0 samples", published_tables.of_cell("empty"), re.MULTILINE
    )
    assert (published_tables.folder / "sweep-sagemaker-dali-quick" / "index.html").exists()
    assert "0 of 4 passes" in table
    assert " left" in table
    assert re.search(r"This is the quick form: 2 measurements of 0.5 s .* exact to ± [\d.]+", table)


def test_a_loop_of_ones_own_is_swept(published_tables: Run) -> None:
    table = published_tables.of_cell("own")
    for row in ("workers 1, threads 1", "workers 2, threads 2"):
        assert row in table
    assert table.count("replayed") == 2
    assert "not measured" not in table


def test_a_pipeline_of_ones_own_takes_over_and_is_reproducible(own_pipeline: Run) -> None:
    epochs = re.findall(r"^epoch (\d+): (\d+) samples, now (\S+), decoded by (.*)$", own_pipeline.printed, re.MULTILINE)
    assert [int(number) for number, *_ in epochs] == list(range(len(epochs)))
    assert {samples for _, samples, *_ in epochs} == {"48"}
    engines = [engine for *_, engine, _ in epochs]
    assert engines[0] == "torchvision"
    assert engines[-1] in ("dali-cpu", "dali-gpu")
    assert epochs[-1][3] == f"{{'{engines[-1]}': 48}}"
    assert "0 lost, 0 doubled" in own_pipeline.printed
    assert "48 images of (3, 128, 128), the same again: True" in own_pipeline.printed


def test_a_killed_process_leaves_its_session(recorded_session: Run) -> None:
    assert "ended by signal 9" in recorded_session.printed
    assert re.search(
        r"^[89]\.\d s, ended: the kernel ended without goodbye$|^7\.\d s, ended: the kernel ended",
        recorded_session.printed,
        re.MULTILINE,
    )
    assert "damaged: nothing" in recorded_session.printed
    rows, series = re.findall(r"^([\d,]+) rows, ([\d,]+) series$", recorded_session.printed, re.MULTILINE)[0]
    assert int(rows) > 40
    assert int(series.replace(",", "")) > 30
    first, last = re.findall(r"took (\d+) MB at first and (\d+) MB when", recorded_session.printed)[0]
    assert int(last) - int(first) > 100  # 40 MB a second
    page = (recorded_session.folder / "session.html").read_text("utf-8")
    assert "Recorded session" in page


def test_a_slow_rank_is_named_and_one_click_switches_both(many_ranks: Run) -> None:
    assert re.search(
        r"^Rank 1 of job 1|^Rank 1 is the slowest: it waits for its data", many_ranks.printed, re.MULTILINE
    )
    assert re.search(r"^torchvision on 2 ranks\ndali(-cpu|-gpu)? on 2 ranks$", many_ranks.printed, re.MULTILINE)
    counted = r"epoch \d+ over 2 ranks: (\d+) of (\d+) samples once, 0 lost, 0 delivered twice"
    ((once, length),) = re.findall(counted, many_ranks.printed)
    assert (int(once), int(length)) == (IMAGES, IMAGES)
    assert "export KERNEL_MONITOR_JOIN=" in many_ranks.printed


def test_masks_are_the_same_before_and_after_the_swap(segmentation: Run) -> None:
    swaps = re.findall(r"^(\S+) → (\S+) at batch \d+ of epoch \d+, ", segmentation.of_cell("compare"), re.MULTILINE)
    ((source, target),) = swaps
    assert source == "torchvision"
    assert target in ("dali-cpu", "dali-gpu")
    assert "last epoch: 80 of 80 samples, 0 lost, 0 doubled; 0 left to their own code" in segmentation.printed
    after = segmentation.of_cell("after")
    (difference,) = re.findall(
        rf"^torchvision and {target}: masks equal; images differ by ([\d.]+) of 255 on average$", after, re.MULTILINE
    )
    assert float(difference) < 1
    (decoders,) = re.findall(r"^decoded by \{(.*)\}$", after, re.MULTILINE)
    assert re.fullmatch(rf"'{target}': \d+", decoders), decoders
    right = [
        int(share) for share in re.findall(r"^epoch .* (\d+)% of the pixels right", segmentation.printed, re.MULTILINE)
    ]
    assert right[-1] > 60


def test_the_shift_in_utilisation_is_shown(segmentation: Run) -> None:
    table = segmentation.of_cell("compare")
    assert re.search(r"^ +torchvision +dali-\w+$", table, re.MULTILINE)
    for row in ("images/s", "waiting for data", "CPU time per image", "cores busy"):
        assert re.search(rf"^{row} +[\d.]+ ?(?:%|ms)? +[\d.]+ ?(?:%|ms)?$", table, re.MULTILINE), table
