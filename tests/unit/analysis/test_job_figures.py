"""The slowest and the median rank of a job side by side, in the store, in the report, and in a comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC
from typing import Any, cast

import numpy as np
import pytest
from bokeh.models import ColumnDataSource, VArea

from kernel_monitor.analysis import analyse
from kernel_monitor.analysis.job_figures import job_comparisons, job_figures, job_phases, plain
from kernel_monitor.analysis.slow_rank import SlowRank
from kernel_monitor.rank import Rank, job_series
from kernel_monitor.report.page import section
from kernel_monitor.report.sections import Subject
from kernel_monitor.store import Snapshot, Store
from kernel_monitor.store.schema import Gpu, Series, ranks_series
from kernel_monitor.views import layout
from tests.browser.scenes import machine
from tests.unit.checks import not_none
from tests.unit.pages import Page
from tests.unit.reports import nothing

RANKS = tuple(Rank(f"1-{k}", 1, k, 3) for k in range(3))


def values(**own: tuple[float, ...]) -> dict[str, float]:
    """Values of the ranks: of each part one for each rank (ms)."""
    return {f"rank/1-{k}/{part}": value for part, each in own.items() for k, value in enumerate(each)}


def test_the_slowest_has_the_longest_time_of_its_own_and_the_median_is_another_one() -> None:
    found = job_phases(RANKS, values(step=(20, 20, 20), wait=(2, 6, 3), forward=(5, 5, 5), backward=(12, 8, 11)), {})
    assert (found["job/1/slowest/rank"], found["job/1/median/rank"]) == (1, 0)
    assert (found["job/1/slowest/wait"], found["job/1/slowest/backward"]) == (6, 8)
    assert found["job/1/slowest/other"] == pytest.approx(1)  # so that they stand up to the step
    assert "job/1/slowest/copy" not in found
    assert set(found) <= {name for name, _ in job_series(1)}
    assert job_phases(RANKS, values(step=(40, 20, 21), wait=(1, 9, 1)), {})["job/1/slowest/rank"] == 0


def test_the_one_that_is_named_counts_and_ranks_without_values_do_not() -> None:
    slow = {1: SlowRank(RANKS[2], "data", 4.0, 20.0, 3)}
    own = values(step=(20, 20, 20), wait=(2, 6, 3))
    assert job_phases(RANKS, own, slow)["job/1/slowest/rank"] == 2
    del own["rank/1-2/step"]
    assert job_phases(RANKS, own, slow)["job/1/slowest/rank"] == 1
    del own["rank/1-1/step"]
    assert job_phases(RANKS, own, slow) == {"job/1/step": 20, "job/1/wait": 2}


def test_a_job_has_the_images_of_all_its_ranks_and_the_means_of_their_steps() -> None:
    own = values(step=(20, 22, 30), wait=(2, 6, 4), images=(100, 90, 80))
    del own["rank/1-2/step"]  # it has ended
    found = {part: value for part, value in job_phases(RANKS, own, {}).items() if part.count("/") == 2}
    assert found == {"job/1/images": 190, "job/1/step": 21, "job/1/wait": 4}


def test_the_two_panels_have_one_scale_and_stand_on_the_ground() -> None:
    bare = machine(cores=2, sockets=1, nodes=1, gpus=0, loaders=(), charts=("ranks",))
    of = replace(bare, ranks=RANKS, series=(*bare.series, *ranks_series(RANKS)))
    charts = layout(of)
    one, other = (cast("Any", charts.select_one({"name": f"ranks-1-{which}"})) for which in ("slowest", "median"))
    assert one.y_range is other.y_range
    sources = cast("list[ColumnDataSource]", charts.select({"type": ColumnDataSource}))
    (tag,) = [source.tags[0] for source in sources if source.name == "ranks-1-slowest-stack"]
    assert tag["columns"]["beside"] == "job/1/slowest/rank"
    assert [tag["columns"][column] for column in tag["stacked"]][:2] == ["job/1/slowest/wait", "job/1/slowest/copy"]
    assert len(cast("list[VArea]", one.select({"type": VArea}))) == len(tag["stacked"])


def session(late: float = 4.0, rate: float = 100.0) -> Snapshot:
    """A minute of three ranks of which the second waits `late` ms longer for its data."""
    ranks = (RANKS[0], replace(RANKS[1], host="rack-b", node="node-1"), replace(RANKS[2], gpu=0, alive=False))
    series = (Series("sample/interval", "ms"), *ranks_series(ranks))
    schema = replace(Store().schema, series=series, ranks=ranks, gpus=(Gpu(0, "NVIDIA L4", None),))
    time, random = np.arange(0.1, 60, 0.1), np.random.default_rng(0)
    table = np.full((len(time), len(series)), np.nan, np.float32)
    for k, rank in enumerate(ranks):
        wait = 2 + (late if k == 1 else 0.0) + random.normal(0, 0.1, len(time))
        parts: dict[str, Any] = {"step": 20 + 0 * wait, "wait": wait, "forward": 5 + 0 * wait, "backward": 12 - wait}
        parts |= {"images": rate + 0 * wait, "steps": np.arange(len(time)) * 5.0, "wait_percent": 5 * wait}
        for part, column in parts.items():
            table[:, schema.columns[f"rank/{rank.id}/{part}"]] = column
    table[300:, schema.columns["rank/1-0/steps"]] -= 1400  # started again
    events = [{"id": 1, "kind": "slow-rank", "time": 5.0, "rank": "1-1", "cause": "data", "message": ""}]
    return replace(Store().snapshot([], {}), schema=schema, time=time, values=table, events=events)


def test_the_figures_of_a_job() -> None:
    (found,) = job_figures(session())
    assert found.rate == pytest.approx(300)
    assert found.slowest is not None
    assert (found.slowest.rank.number, found.slowest.cause) == (1, "data")
    assert found.slowest.lost == pytest.approx(4, abs=0.3)
    assert [each.steps for each in found.ranks] == [1495 + 1590, 2990, 2990]
    assert found.ranks[1].means["wait"] == pytest.approx(6, abs=0.1)
    assert job_figures(replace(session(), schema=replace(session().schema, ranks=()))) == ()


def test_the_report_has_a_row_for_each_rank() -> None:
    found = not_none(section(Subject(session(), nothing("nothing"), UTC), "ranks"))
    said = " ".join(Page(found).text.split())
    assert "300 images/s over 3 ranks. Rank 1 (rack-b) is the slowest: it waits for its data" in said
    assert "GPUs: NVIDIA L4." in said
    assert "2 this host 0 20 2" in said
    assert "1 × by its data" in said
    assert section(Subject(Store().snapshot([], {}), nothing("nothing"), UTC), "ranks") is None


def test_two_sessions_compared_by_their_jobs() -> None:
    (line,) = job_comparisons(session(), session(late=0.0, rate=110.0))
    assert line.startswith("job 1: 300 images/s over 3 ranks in A, 330 images/s over 3 ranks in B (+10.0 %). ")
    assert line.endswith("ms of a step of 20.0 ms, as it waits for its data; B: none for sure.")
    assert "Slowest rank: A: 1, " in line
    (alone,) = job_comparisons(session(), Store().snapshot([], {}))
    assert alone.startswith("job 1 (only in A): 300 images/s over 3 ranks in A. ")
    (entry,) = json.loads(json.dumps(plain(job_figures(session()))))
    assert (entry["ranks"], entry["slowest"]["rank"]) == (3, 1)


def test_a_session_whose_loops_ran_in_ranks_says_what_these_did() -> None:
    verdict = analyse(session()).verdict
    assert verdict.kind == "undetermined"
    assert verdict.sentence.startswith(
        "Job 1 ran on 3 ranks, 300 images/s together, waiting 17 % of their steps for data. Rank 1"
    )
    assert "Wrap" not in verdict.advice
