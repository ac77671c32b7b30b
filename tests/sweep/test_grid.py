"""The grids of the presets, and what is made of the windows' figures: savings, noise, signs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from kernel_monitor.errors import MonitorError
from kernel_monitor.sweeps.presets import Choice, backend_of, fused_of, order_of, preset
from kernel_monitor.sweeps.sweep_file import begin, read
from kernel_monitor.sweeps.sweep_run import Progress
from kernel_monitor.sweeps.sweep_summary import exactness, sentence
from kernel_monitor.sweeps.table_cells import cells, noise_of, ratios, sign_right, signs


def grid(name: str, *, gpu: bool = False, cores: int = 8, **choice: Any) -> Any:
    return preset(name, Choice(**choice), cores=cores, gpu=gpu, images=1000, data="demo")


def window(rate: float, seconds: float = 10.0, **more: Any) -> dict[str, Any]:
    samples = round(rate * seconds)
    counted = {"steps": 20, "batches": 20, "samples": samples, "replaced": 0, "decoded": {"torchvision": samples}}
    times = {"wait": 10.0, "step": 100.0, "own_work": 90.0, "timed_steps": 20}
    return {"seconds": seconds, **counted, "epochs": 0, "rate": samples / seconds, **times, **more}


def content(*passes: dict[str, Any], **choice: Any) -> dict[str, Any]:
    made = grid("sagemaker-dali", models=["resnet18"], loads=[1], **choice).to_json()
    row = made["rows"][0]["name"]
    numbered = [{"row": row, "number": k, "predicted": {}, **one} for k, one in enumerate(passes, 1)]
    return {"grid": made, "passes": numbered}


def test_the_published_grid_is_three_models_at_four_loads_with_two_engines() -> None:
    found = grid("sagemaker-dali", short=True)
    assert [row.name for row in found.rows][:2] == ["resnet18 · load 1", "resnet18 · load 4"]
    assert sum(len(row.engines) for row in found.rows) == 24
    assert {row.load for row in found.rows} == {1, 4, 8, 12}
    assert {row.engines for row in found.rows} == {("torchvision", "dali-cpu")}
    assert (found.passes, grid("sagemaker-dali").passes) == (4, 2)
    whole = grid("sagemaker-dali", gpu=True)
    assert {row.engines for row in whole.rows} == {("torchvision", "dali-gpu")}
    assert {(row.batch, row.resize, row.crop) for row in whole.rows} == {(32, 256, 224)}


def test_the_quick_form_has_fewer_rows_and_shorter_windows_and_says_how_exact_it_is() -> None:
    quick, full = grid("sagemaker-dali", short=True, quick=True), grid("sagemaker-dali", short=True)
    assert {row.load for row in quick.rows} == {1, 12}
    assert {row.model for row in quick.rows} == {row.model for row in full.rows}

    def seconds(one: Any) -> float:
        return float(one.passes * one.seconds * sum(len(row.engines) for row in one.rows))

    assert seconds(quick) <= seconds(full) / 5
    windows = [{"torchvision": window(100), "dali-cpu": window(rate)} for rate in (200, 125)]
    made = content(*({"windows": one} for one in windows), short=True, quick=True)
    said = exactness(made, cells(made))
    assert said is not None
    assert "2 measurements of 2 s" in said
    assert "exact to ± 30 percentage points" in said  # 50 % and 20 % were saved
    assert "full=True" in said
    assert exactness(content(short=True), []) is None


def test_the_time_left_is_known_before_the_first_pass_and_a_log_gets_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = Progress(4, 0, expected=10.0)
    line.cell("resnet18 · load 1, torchvision")
    for _ in range(1000):
        line.tell()
    said = capsys.readouterr().err
    assert said.endswith("0 of 4 passes · resnet18 · load 1, torchvision · about 40 s left\n")
    assert said.count("\n") == 1


def test_the_case_study_has_the_fused_decode_apart_from_the_other() -> None:
    (row,) = grid("resnet50-case-study", gpu=True, batch=192).rows
    assert row.engines == ("torchvision", "dali-gpu", "synthetic", "dali-gpu fused")
    assert (row.batch, row.chain) == (192, "crop first")
    assert [fused_of(engine, row) for engine in row.engines] == [None, False, None, True]
    assert backend_of("dali-gpu fused") == "dali-gpu"


def test_the_workers_are_counted_up_to_twice_the_cores() -> None:
    rows = grid("workers", cores=8).rows
    assert [row.knobs["workers"] for row in rows] == [1, 1, 2, 2, 4, 4, 8, 8, 16, 16]
    assert {row.knobs["prefetch"] for row in rows} == {2, 4}
    assert all(row.knobs["threads"] == row.knobs["workers"] for row in rows)
    assert len({row.name for row in rows}) == len(rows)


def test_engines_take_turns() -> None:
    row = grid("sagemaker-dali").rows[0]
    assert [order_of(row, number) for number in (1, 2, 3)] == [row.engines, row.engines[::-1], row.engines]


@pytest.mark.parametrize(
    ("name", "choice", "word"),
    [
        ("bake", {}, "resnet50-case-study"),
        ("workers", {"passes": -1}, "passes"),
        ("workers", {"seconds": -1}, "negative"),
    ],
)
def test_what_cannot_be_is_refused(name: str, choice: dict[str, Any], word: str) -> None:
    with pytest.raises(MonitorError, match=word):
        grid(name, **choice)


def test_a_folder_keeps_to_its_grid(tmp_path: Path) -> None:
    first = grid("sagemaker-dali", short=True)
    begin(tmp_path, first, {}).add({"row": first.rows[0].name, "number": 1, "windows": {}, "predicted": {}})
    assert begin(tmp_path, first, {}).has(first.rows[0].name, 1)
    with pytest.raises(MonitorError, match=r"another grid.*seconds: 4\.0 there, 3 now.*--again"):
        begin(tmp_path, grid("sagemaker-dali", short=True, seconds=3), {})
    assert not begin(tmp_path, first, {}, again=True).passes
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(MonitorError, match="cannot be read"):
        read(tmp_path)


def test_two_sweeps_in_one_folder_do_not_overwrite_each_other(tmp_path: Path) -> None:
    made = grid("sagemaker-dali", short=True)
    first, second = begin(tmp_path, made, {}), begin(tmp_path, made, {})
    first.add({"row": made.rows[0].name, "number": 1, "windows": {}, "predicted": {}})
    with pytest.raises(MonitorError, match="Another sweep writes into"):
        second.add({"row": made.rows[0].name, "number": 1, "windows": {}, "predicted": {}})
    assert len(read(tmp_path).passes) == 1


def test_a_saving_is_of_all_passes_and_its_noise_of_their_spread() -> None:
    found = cells(
        content(
            {"windows": {"torchvision": window(100), "dali-cpu": window(200)}},
            {"windows": {"torchvision": window(100), "dali-cpu": window(125)}},
        )
    )
    first, second = found[0]
    assert second.saved == pytest.approx(1 - 100 / 162.5, abs=1e-3)
    assert second.noise == pytest.approx(0.5 - 0.2)  # twice the standard error of two values: their distance
    assert (first.samples, second.samples) == (2000, 3250)
    assert second.epoch == pytest.approx(1000 / 162.5, abs=1e-2)
    assert math.isnan(first.saved)
    assert "dali-cpu saves 38 % of torchvision’s time in resnet18 · load 1 (10 → 6.15 s per epoch)" in sentence(found)


def test_the_noise_is_never_less_than_what_no_engine_is_called_faster_by() -> None:
    assert noise_of([window(100)], [window(150)]) == 0.02


def test_a_cell_that_failed_has_its_cause_and_the_others_their_figures() -> None:
    made = content({"windows": {"torchvision": window(100), "dali-cpu": {"problem": "dali-cpu: no driver"}}})
    first, second = cells(made)[0]
    assert (first.problem, first.rate) == (None, 100)
    assert second.problem == "dali-cpu: no driver"
    assert math.isnan(second.epoch)
    assert ratios(made) == {}


def test_what_an_epoch_costs_is_of_its_own_time() -> None:
    made = content({"windows": {"torchvision": window(100), "dali-cpu": window(200)}})
    first, second = cells(made, price=3600.0)[0]
    assert [first.cost, second.cost] == pytest.approx([10.0, 5.0])


@pytest.mark.parametrize(
    ("low", "high", "saved", "right"),
    [
        (0.1, 0.3, 0.2, True),
        (0.1, 0.3, -0.2, False),
        (-0.3, -0.1, -0.5, True),
        (-0.3, -0.1, 0.1, False),
        (0.1, 0.3, 0.01, False),  # a gain was promised, and none came
        (-0.04, 0.06, 0.01, True),  # none was promised, none came
        (-0.04, 0.06, 0.07, True),  # within the interval that the noise widens
        (-0.04, 0.06, 0.2, False),
        (math.nan, 0.3, 0.2, None),
    ],
)
def test_a_sign_is_right_or_wrong(low: float, high: float, saved: float, right: bool | None) -> None:
    assert sign_right(low, high, saved, 0.02) is right


def test_signs_are_counted_where_there_was_a_prediction() -> None:
    said = {"dali-cpu": {"low": 0.4, "high": 0.6, "basis": "measured", "kind": None, "by": ""}}
    made = content({"windows": {"torchvision": window(100), "dali-cpu": window(200)}, "predicted": said})
    assert signs(cells(made)) == (1, 1)
