"""The demo set: what a picture is like, what a folder of them is like, and what happens when making it goes wrong."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest
from PIL import Image

from kernel_monitor.demo import demo_data, generate, scene
from kernel_monitor.demo.generate import Recipe
from kernel_monitor.errors import MonitorError
from tests.unit.checks import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGES, CLASSES = 120, 6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set that several processes made together. Tests of this module only read it."""
    return demo_data(tmp_path_factory.mktemp("demo") / "a set", images=IMAGES, classes=CLASSES, progress=False)


def pictures(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.jpg"), key=lambda path: path.name)


def pixels(path: Path) -> npt.NDArray[np.float64]:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), np.float64)


def test_every_file_is_whole_and_of_the_promised_size(root: Path) -> None:
    paths = pictures(root)
    assert len(paths) == IMAGES
    assert all(110_000 <= path.stat().st_size <= 150_000 for path in paths)
    shapes, samplings = [], set()
    for path in paths:
        with Image.open(path) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            image.load()
            shapes.append(image.size)
            samplings.add(getattr(image, "layer")[0][1:3])  # noqa: B009 - not in Pillow's stubs
    assert samplings == {(1, 1), (2, 2)}  # 4:4:4 and 4:2:0
    longest = [max(shape) for shape in shapes]
    assert min(longest) >= 400
    assert max(longest) <= 640
    assert np.median(longest) == pytest.approx(500, abs=50)
    assert np.median([min(shape) for shape in shapes]) == pytest.approx(375, abs=50)
    assert sum(width > height for width, height in shapes) > IMAGES / 3
    assert sum(width < height for width, height in shapes) > IMAGES / 10
    assert len(set(shapes)) > IMAGES / 2


def test_torchvision_reads_it_as_an_image_folder(root: Path) -> None:
    from torchvision.datasets import ImageFolder

    folder = ImageFolder(str(root))
    assert len(folder) == IMAGES
    assert sorted(folder.classes) == sorted(scene.class_name(label) for label in range(CLASSES))
    assert np.bincount(folder.targets).tolist() == [IMAGES // CLASSES] * CLASSES
    assert len({scene.class_name(label) for label in range(scene.MOST_CLASSES)}) == scene.MOST_CLASSES


def test_equal_seeds_give_equal_files_whoever_makes_them(root: Path) -> None:
    recipe = Recipe(IMAGES, CLASSES, 0)
    for index in (0, 7, IMAGES - 1):
        assert (root / recipe.place(index)).read_bytes() == scene.jpeg(0, index, index % CLASSES)
    assert scene.jpeg(1, 7, 1) != scene.jpeg(0, 7, 1)
    assert scene.jpeg(0, 8, 1) != scene.jpeg(0, 7, 1)


def test_spectrum_edges_and_colour_are_those_of_photographs(root: Path) -> None:
    """Bounds around what photographs show: amplitude falls like 1/f, gradients are rare and strong, colour is calm."""
    slopes, kurtoses, chroma = [], [], []
    for path in pictures(root)[:40]:
        with Image.open(path) as image:
            planes = np.asarray(image.convert("YCbCr"), np.float64)
        grey = planes[..., 0]
        window = np.outer(np.hanning(grey.shape[0]), np.hanning(grey.shape[1]))
        amplitude = np.abs(np.fft.fft2((grey - grey.mean()) * window))
        frequency = np.hypot(*np.meshgrid(*(np.fft.fftfreq(side) for side in grey.shape), indexing="ij"))
        edges = np.geomspace(0.01, 0.5, 12)
        means = [amplitude[(frequency >= low) & (frequency < high)].mean() for low, high in pairwise(edges)]
        slopes.append(np.polyfit(np.log(edges[:-1]), np.log(means), 1)[0])
        gradient = np.diff(grey, axis=1)
        kurtoses.append(np.mean((gradient - gradient.mean()) ** 4) / gradient.var() ** 2)
        chroma.append(np.abs(np.diff(planes[..., 1], axis=1)).mean() / np.abs(gradient).mean())
    assert -1.5 < np.median(slopes) < -0.8
    assert np.median(kurtoses) > 5  # 3 would be noise without edges
    assert 0.05 < np.median(chroma) < 0.5


def test_a_linear_probe_on_colours_tells_the_classes_apart(root: Path) -> None:
    features = []
    for path in pictures(root):
        bins = (pixels(path) // 64).astype(int) @ (16, 4, 1)
        features.append(np.bincount(bins.ravel(), minlength=64) / bins.size)
    labels = np.arange(IMAGES) % CLASSES
    inputs = np.sqrt(np.array(features))
    learn = np.arange(IMAGES) < IMAGES * 2 // 3
    ridge = inputs[learn].T @ inputs[learn] + 1e-3 * np.eye(64)
    weights = np.linalg.solve(ridge, inputs[learn].T @ np.eye(CLASSES)[labels[learn]])
    right = np.argmax(inputs[~learn] @ weights, axis=1) == labels[~learn]
    assert right.mean() > 2 / CLASSES
    assert right.mean() > 0.6


def test_a_complete_set_is_kept_and_a_damaged_one_repaired(tmp_path: Path) -> None:
    root = demo_data(tmp_path / "set", images=40, classes=4, progress=False)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in pictures(root)}
    demo_data(root, images=40, classes=4, progress=False)
    assert {path: path.stat().st_mtime_ns for path in pictures(root)} == {p: when for p, (when, _) in before.items()}

    gone, cut, *_ = list(before)
    gone.unlink()
    cut.write_bytes(before[cut][1][:5000])
    stale, fresh = cut.with_name(".00009.jpg.1.tmp"), cut.with_name(".00009.jpg.2.tmp")
    for left in (stale, fresh):
        left.write_bytes(b"half")
    os.utime(stale, (0, 0))
    demo_data(root, images=40, classes=4, progress=False)
    assert {path: path.read_bytes() for path in pictures(root)} == {path: data for path, (_, data) in before.items()}
    remade = {path for path in pictures(root) if path.stat().st_mtime_ns != before[path][0]}
    assert remade == {gone, cut}
    assert not stale.exists()
    assert fresh.exists()  # perhaps another process's

    demo_data(root, images=44, classes=4, progress=False)
    assert len(pictures(root)) == 44
    assert before.items() >= {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in before if p not in remade}.items()


def test_workers_take_nothing_from_the_folder_they_are_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "numpy", "PIL", "random"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('mine')")
    monkeypatch.chdir(tmp_path)
    assert len(list(generate._together(tmp_path / "set", Recipe(8, 4, 0), list(range(8)), 2))) == 8


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_progress_counts_every_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbuffered: str) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    wanted = list(range(3, 27))
    assert sorted(generate._together(tmp_path, Recipe(40, 4, 0), wanted, 3)) == wanted


def test_a_killed_run_leaves_no_process_and_no_half_file(tmp_path: Path) -> None:
    root = tmp_path / "set"
    command = [sys.executable, "-m", "kernel_monitor.cli", "demo-data", str(root), "--images", "2048"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(pictures(root)) >= 20 or run.poll() is not None, 60)
        assert run.poll() is None
        made_by = psutil.Process(run.pid).children(recursive=True)
    finally:
        run.kill()
        run.wait()
    assert made_by or os.cpu_count() == 1
    _, alive = psutil.wait_procs(made_by, timeout=10)
    assert not alive
    for path in pictures(root):
        with Image.open(path) as image:
            image.load()
    made = len(pictures(root))
    assert made < 2048
    shutil.rmtree(root / scene.class_name(0))  # and finishing costs only what is missing; here, a small set's worth
    marker = root / generate.MARKER
    marker.write_text(marker.read_text().replace("2048", "60"))
    demo_data(root, images=60, progress=False)
    assert all((root / Recipe(60, 10, 0).place(index)).is_file() for index in range(60))


def workers() -> set[psutil.Process]:
    """The processes under this one; another test's fork server may be among them."""
    return set(psutil.Process().children(recursive=True))


def test_a_worker_that_fails_is_an_error_with_its_cause(tmp_path: Path) -> None:
    before = workers()
    for images in (4, 64):  # in this process, and in workers
        root = tmp_path / str(images)
        recipe = Recipe(images, 4, 0)
        root.mkdir()
        generate._claim(root, recipe)
        (root / scene.class_name(2)).write_text("a file where a folder should be")
        with pytest.raises(MonitorError, match=f"incomplete: .*{scene.class_name(2)}"):
            demo_data(root, images=images, classes=4, progress=False)
        assert workers() == before


def test_an_interrupt_ends_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(made: Iterator[int], _total: int) -> Iterator[int]:
        yield next(made)
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "_counted", interrupted)
    before = workers()
    with pytest.raises(KeyboardInterrupt) as kept:  # and the traceback with it, as a notebook does
        demo_data(tmp_path / "set", images=200)
    assert kept.traceback
    assert workers() == before
    assert len(pictures(tmp_path / "set")) < 100


def test_progress_is_shown_without_tqdm_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    demo_data(tmp_path / "set", images=4, classes=4)
    assert capsys.readouterr().err.split("\r")[-1] == "demo images: 4 of 4\n"


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(MonitorError, match="holds no demo set"):
        demo_data(tmp_path, images=10)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("change", [{"seed": 1}, {"classes": 3}, {"images": 6}])
def test_another_set_in_the_folder_is_left_alone(tmp_path: Path, change: dict[str, Any]) -> None:
    root = demo_data(tmp_path / "set", images=8, classes=4, progress=False)
    with pytest.raises(MonitorError, match="8 images, 4 classes, seed 0"):
        demo_data(root, **({"images": 8, "classes": 4, "seed": 0} | change))
    assert len(pictures(root)) == 8


def test_a_damaged_marker_is_named(tmp_path: Path) -> None:
    root = demo_data(tmp_path / "set", images=4, classes=4, progress=False)
    (root / generate.MARKER).write_text("{")
    with pytest.raises(MonitorError, match=r"kernel-monitor-demo\.json is damaged"):
        demo_data(root, images=4, classes=4)


def test_a_full_disk_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 10**6, 10**6))
    with pytest.raises(MonitorError, match="1 MB free, and 100 images need 15 MB"):
        demo_data(tmp_path / "set", images=100)
    assert not pictures(tmp_path / "set")


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [((10, 0, 0), "1 to 60 classes, not 0"), ((100, 61, 0), "not 61"), ((3, 4, 0), "3 images"), ((9, 3, -1), "seed")],
)
def test_numbers_that_make_no_set(tmp_path: Path, recipe: tuple[int, int, int], sentence: str) -> None:
    images, classes, seed = recipe
    with pytest.raises(MonitorError, match=sentence):
        demo_data(tmp_path / "set", images=images, classes=classes, seed=seed)
    assert not (tmp_path / "set").exists()


def test_a_label_out_of_range() -> None:
    with pytest.raises(ValueError, match="label 60"):
        scene.jpeg(0, 0, 60)


def test_every_class_compresses_to_the_promised_size() -> None:
    for label in range(0, scene.MOST_CLASSES, 5):
        data = scene.jpeg(7, label, label)
        assert scene.SMALLEST <= len(data) <= scene.LARGEST
        Image.open(io.BytesIO(data)).load()
