"""CPU: one row per logical core, by socket and NUMA node where the machine has several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..analysis.machine_limits import allowed_cores, limits_note
from .heatmap import heatmap
from .rows import Group, Row
from .style import heading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bokeh.models.ui import UIElement

    from ..store import Schema
    from .style import Page

OTHER = 1 << 16  # number of the group of cores that the topology lacks


def cpu(schema: Schema, page: Page) -> list[UIElement]:
    """How busy each logical core is, in %; nothing before the first hello.

    Cores that this process may not use are hatched.
    """
    if not schema.cpus:
        return []
    cores, levels = grouped(schema)
    allowed = allowed_cores(schema)
    rows = []
    for place, core in enumerate(cores):
        # The coarsest first.
        where = [group.label for groups in reversed(levels) for group in groups if group.start <= place < group.end]
        label = " · ".join([f"core {core}", *where] + (["not for this process"] if core not in allowed else []))
        short = str(core) if levels else f"core {core}"
        rows.append(Row(f"cpu/{core}/busy", label, short, hatched=core not in allowed))
    return [
        heading("cpu", "CPU busy, % per core", limits_note(schema)),
        heatmap(page, name="cpu", rows=rows, levels=levels),
    ]


def grouped(schema: Schema) -> tuple[list[int], list[list[Group]]]:
    """The cores from the lowest row up, and the levels of groups that they form, the finest first.

    A level is left out where it has one group, where each core is a group of its own (virtual machines often have a
    socket per core), or where it equals the level before it.
    """
    topology = schema.host.get("topology") or {}
    sockets, nodes = (_numbered(topology.get(key), schema.cpus) for key in ("sockets", "numa"))
    cores = sorted(schema.cpus, key=lambda core: (sockets[core], nodes[core], core))
    levels: list[list[Group]] = []
    for word, of in (("NUMA", nodes), ("socket", sockets)):
        groups = _runs(word, cores, of)
        spans = [(group.start, group.end) for group in groups]
        known = [[(group.start, group.end) for group in level] for level in levels]
        if 1 < len(groups) < len(cores) and spans not in known:
            levels.append(groups)
    # Where both are the same, sockets are the familiar name.
    if len(levels) == 1 and levels[0][0].label.startswith("NUMA"):
        same = _runs("socket", cores, sockets)
        if len(same) == len(levels[0]):
            levels = [same]
    return cores, levels


def _numbered(groups: Sequence[Sequence[int]] | None, cores: tuple[int, ...]) -> dict[int, int]:
    """The number of each core's group; cores in no group are in `OTHER`."""
    of = {int(core): number for number, group in enumerate(groups or ()) for core in group}
    return {core: of.get(core, OTHER) for core in cores}


def _runs(word: str, cores: list[int], of: dict[int, int]) -> list[Group]:
    """Neighbours of the same number as groups."""
    starts = [k for k in range(len(cores)) if k == 0 or of[cores[k]] != of[cores[k - 1]]]
    groups = []
    for start, end in zip(starts, [*starts[1:], len(cores)], strict=True):
        number = of[cores[start]]
        groups.append(Group("other" if number == OTHER else f"{word} {number}", str(number), start, end))
    return groups
