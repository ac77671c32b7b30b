"""The check of the demo set: it passes for the demo set, and fails for a set that decodes otherwise."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import demo_decoding
from benchmarks.demo_decoding import Comparison, Measured, compare
from kernel_monitor.demo import demo_data
from kernel_monitor.errors import MonitorError


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_data(tmp_path_factory.mktemp("demo") / "set", images=64, progress=False)


def test_the_demo_set_decodes_like_photographs(root: Path) -> None:
    comparison = compare(root, selection=32, rounds=7)
    assert comparison.faults(tolerance=0.75) == []  # three times the bar: this machine is shared
    assert {one.name.split()[0] for one in comparison.photographs} >= {"china.jpg", "flower.jpg"}
    assert (len(comparison.demo), len(comparison.ratios)) == (32, 3)
    bits = [np.mean([one.bits_per_pixel for one in files]) for files in (comparison.demo, comparison.photographs)]
    assert bits[0] / bits[1] == pytest.approx(1, abs=0.25)
    text = str(comparison)
    for word in ("china.jpg (scikit-learn)", "ms/MP", "bits/pixel", f"{comparison.ratio:.3f}", "64"):
        assert word in text


def test_pictures_that_decode_faster_are_found_out(root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "set"))
    for path in copy.glob("*/*.jpg"):
        with Image.open(path) as image:
            Image.new("RGB", image.size, "grey").save(path, "JPEG")
    comparison = compare(copy, selection=16, rounds=3)
    assert comparison.ratio < 0.75
    faults = comparison.faults()
    assert any("decode time" in fault for fault in faults)
    assert any("64 files are not of" in fault for fault in faults)


def test_missing_files_are_found_out(root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "set"))
    next(copy.glob("*/*.jpg")).unlink()
    assert "it has 63 of 64 files" in compare(copy, selection=8, rounds=1).faults(tolerance=0.75)
    with pytest.raises(MonitorError, match="holds no demo set"):
        compare(tmp_path)


def test_the_bar_is_a_quarter_on_either_side() -> None:
    def beside(demo: float) -> list[str]:
        photograph = Measured("photograph", 500, 400, 125_000, (8.0,))
        file = Measured("file", 500, 400, 125_000, (demo,))
        return Comparison((file,), (photograph,), 1, (125_000,)).faults()

    assert [bool(beside(demo)) for demo in (5.9, 6.1, 8.0, 9.9, 10.1)] == [True, False, False, False, True]


def test_an_interruption_in_one_round_does_not_count() -> None:
    calm, interrupted = (8.0,) * 9, (8.0, 80.0, *(8.0,) * 7)
    files = [Measured("file", 500, 400, 125_000, rounds) for rounds in (calm, interrupted)]
    comparison = Comparison(tuple(files), (Measured("photograph", 500, 400, 125_000, calm),), 2, (125_000,) * 2)
    assert (comparison.ratio, comparison.ratios) == (1, [1, 1, 1])


def test_without_scikit_learn_it_says_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == "sklearn" else real(name, *rest)

    monkeypatch.setattr(demo_decoding, "find_spec", without)
    with pytest.raises(MonitorError, match="pip install scikit-learn"):
        compare(root, selection=4, rounds=1)
