"""The part of a schema that its chart document depends on: the machine's shape and the choice of charts.

Sessions with equal shapes share one chart document. It has placeholders for the ids and names of loaders and other
machines, for the ids and hosts of ranks, and for the reasons why a machine or a rank is gone, which each session
replaces.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from .schema import LoaderInfo

if TYPE_CHECKING:
    from ..node_sources import Node
    from ..ranks.rank import Rank
    from .schema import Schema

_HOST = ("topology", "limits", "reasons", "memory_total")  # the facts of the host that charts show
_PLACEHOLDER = re.compile(rb"km(loader|node|rank)(\d{1,4})(id|name|reason|host)(?:to(\d{1,4}))?kmend")
_NAME = re.compile(r"(km(?:(?:loader|node)\d{1,4}name|rank\d{1,4}host))kmend")


def shape(schema: Schema) -> Schema:
    """The schema without the parts that differ from session to session; documents are made from it alone."""
    loaders = tuple(
        LoaderInfo(id=f"kmloader{k}idkmend", name=f"kmloader{k}namekmend", phased=loader.phased)
        for k, loader in enumerate(schema.loaders)
    )
    drawn = _drawn(schema)
    nodes = tuple(
        replace(
            node,
            id=f"kmnode{k}idkmend",
            name=f"kmnode{k}namekmend",
            reason=None if node.reason is None else f"kmnode{k}reasonkmend",
        )
        for k, node in enumerate(drawn)
    )
    # Equal reasons have one placeholder: the chart names their ranks together.
    first = {rank.reason: k for k, rank in reversed(list(enumerate(schema.ranks)))}
    hosts = {node: f"host-{k}" for k, node in enumerate(dict.fromkeys(rank.node for rank in schema.ranks if rank.node))}
    hosts |= {node.id: ours.id for node, ours in zip(drawn, nodes, strict=True)}
    ranks = tuple(
        replace(
            rank,
            id=f"kmrank{k}idkmend",
            host=rank.host and f"kmrank{k}hostkmend",
            node=hosts.get(rank.node, ""),
            reason=None if rank.reason is None else f"kmrank{first[rank.reason]}reasonkmend",
        )
        for k, rank in enumerate(schema.ranks)
    )
    ids = {("loader", loader.id): ours.id for loader, ours in zip(schema.loaders, loaders, strict=True)}
    ids |= {("node", node.id): ours.id for node, ours in zip(drawn, nodes, strict=True)}
    ids |= {("rank", rank.id): ours.id for rank, ours in zip(schema.ranks, ranks, strict=True)}
    renamed = tuple(replace(series, name=_renamed(series.name, ids)) for series in schema.series)
    host = {key: schema.host[key] for key in _HOST if key in schema.host}
    gpus = tuple(replace(gpu, throttle=()) for gpu in schema.gpus)
    bare = replace(schema, version=0, interval=1.0, origin=0.0, capacity=1, host=host, gpus=gpus)
    return replace(bare, series=renamed, loaders=loaders, nodes=nodes, ranks=ranks)


def filled(document: bytes, schema: Schema) -> bytes:
    """The JSON document of `shape(schema)` with the loaders, nodes and ranks of the schema."""
    words: dict[bytes, list[LoaderInfo] | list[Node] | list[Rank]] = {
        b"loader": [*schema.loaders],
        b"node": _drawn(schema),
        b"rank": [*schema.ranks],
    }

    def word(found: re.Match[bytes]) -> bytes:
        kind, number, part, most = found.groups()
        known = words[kind]
        text = getattr(known[int(number)], part.decode(), None) if int(number) < len(known) else None
        if not isinstance(text, str):
            return found[0]  # what a recording calls some GPU
        return _escaped(text if most is None else _cut(text, int(most)))

    return _PLACEHOLDER.sub(word, document)


def shortened(name: str, most: int) -> str:
    """A name cut in its middle to at most `most` letters, at least three; for a placeholder one of the cut name."""
    placeholder = _NAME.fullmatch(name)
    return f"{placeholder[1]}to{most}kmend" if placeholder else _cut(name, most)


def _drawn(schema: Schema) -> list[Node]:
    """The nodes that have series in the schema: where no chart shows them, they come and go unnoticed."""
    known = {series.name.split("/", 2)[1] for series in schema.series if series.name.startswith("node/")}
    return [node for node in schema.nodes if node.id in known]


def _cut(text: str, most: int) -> str:
    """A host's name without its domain; if that is not enough, its beginning and its end, where such names differ."""
    if len(text) > most and not text.replace(".", "").isdecimal():  # no address
        text = text.partition(".")[0] or text
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def _renamed(series: str, ids: dict[tuple[str, str], str]) -> str:
    first, _, rest = series.partition("/")
    # The id of a loader may be anything; those of a node and a rank have no slash.
    known, _, part = rest.rpartition("/") if first == "loader" else rest.partition("/")
    return f"{first}/{ids[first, known]}/{part}" if (first, known) in ids else series


def _escaped(text: str) -> bytes:
    """As inside a JSON string."""
    return json.dumps(text)[1:-1].encode()
