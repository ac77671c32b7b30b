"""The chart of ranks: rows from the first rank down, ended ones with their reason, hosts in hovers, one document."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from bokeh.models import Grid

from kernel_monitor.rank import Rank
from kernel_monitor.report.privacy import clean, with_pseudonyms
from kernel_monitor.store import Schema, Store
from kernel_monitor.store.charts import document_shape, fill_document
from kernel_monitor.store.schema import ranks_series
from kernel_monitor.views import document, layout
from tests.browser.scenes import machine
from tests.unit.views.test_figures import every, tags

GONE = "its process has ended"


def schema(*ranks: Rank) -> Schema:
    bare = machine(cores=2, sockets=1, nodes=1, gpus=0, loaders=(), charts=("ranks",))
    return replace(bare, ranks=ranks, series=(*bare.series, *ranks_series(ranks)))


def tag(of: Schema, part: str) -> dict[str, Any]:
    return tags(of)[f"ranks-{part}-tiles"]


def hatched(of: Schema) -> int:
    return sum(grid.name == "hatched" for grid in every(layout(of), Grid))


def shown(of: Schema) -> str:
    """The document as pages get it: made of the shape, filled for the session."""
    return json.dumps(
        json.loads(fill_document(json.dumps(document(document_shape(of))).encode(), of)), ensure_ascii=False
    )


def test_the_first_rank_is_the_highest_row_and_steps_have_a_scale_of_their_own() -> None:
    of = schema(Rank("1-0", 1, 0, 2), Rank("1-1", 1, 1, 2, "rack-b"))
    steps, waits = tag(of, "step"), tag(of, "wait_percent")
    assert (steps["rows"], steps["labels"]) == (["rank/1-1/step", "rank/1-0/step"], ["rank 1 · rack-b", "rank 0"])
    assert (steps["unit"], steps["scale"]) == ("ms", "auto")
    assert waits["unit"] == "%"
    assert "scale" not in waits
    # A report keeps such values as they are: in whole per cent they would be cut at 100.
    assert {"rank/1-0/step", "rank/1-1/step"} <= set(document(of)["lines"])
    assert "rank/1-0/wait_percent" not in document(of)["lines"]
    of = schema(Rank("1-0", 1, 0, 1), Rank("2-0", 2, 0, 1))
    assert tag(of, "step")["labels"] == ["job 2 · rank 0", "job 1 · rank 0"]


def test_ended_ranks_keep_their_rows_with_the_reason() -> None:
    ended = [Rank(f"1-{k}", 1, k, 3, alive=False, reason=GONE) for k in (1, 2)]
    of = schema(Rank("1-0", 1, 0, 3), *ended)
    assert f"ranks 1, 2: {GONE}" in shown(of)
    assert hatched(of) == 2  # in both strips
    over = schema(*ended)
    assert hatched(over) == 0  # what has ended as a whole is read, not left out
    assert "rank 1 · ended" in shown(over)


def test_one_document_serves_all_sessions_of_a_shape() -> None:
    one, other = (schema(Rank("1-0", 1, 0, 2), Rank("1-1", 1, 1, 2, host)) for host in ("rack-a", "rack-b"))
    assert document_shape(one) == document_shape(other)
    assert "rack-b" in shown(other)
    assert "rack-a" not in shown(other)


def test_a_report_has_no_name_of_a_host() -> None:
    of = replace(
        Store().snapshot([], {}), schema=schema(Rank("1-0", 1, 0, 1, "secret-host", reason="secret-host is gone"))
    )
    found = clean(with_pseudonyms(of, {"secret-host": "node-1"})).schema.ranks[0]
    assert found.host == "node-1"


def test_a_process_without_steps_has_a_line_and_no_strip() -> None:
    of = schema(Rank("1-0", 1, 0, 1, steps=False))
    text = shown(of)
    assert "Ranks: CPU of each process" in text
    assert "Ranks: step time" not in text
