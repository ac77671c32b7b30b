"""What the charts of a schema depend on: the machine's shape and the choice of charts, and not which session it is.

Sessions with equal shapes share one chart document. Loaders stand in it under names of ours, for which each session
puts its own.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from .schema import LoaderInfo

if TYPE_CHECKING:
    from .schema import Schema

_HOST = ("topology", "limits", "reasons")
"""The facts of the host that charts show."""
_STANDS_FOR = re.compile(rb"kmloader(\d+)(id|name)kmend")


def shape(schema: Schema) -> Schema:
    """The schema without what differs from session to session; documents are made from it alone."""
    loaders = tuple(
        LoaderInfo(id=f"kmloader{k}idkmend", name=f"kmloader{k}namekmend", phased=loader.phased)
        for k, loader in enumerate(schema.loaders)
    )
    ids = {loader.id: ours.id for loader, ours in zip(schema.loaders, loaders, strict=True)}
    series = tuple(replace(one, name=_renamed(one.name, ids)) for one in schema.series)
    host = {key: schema.host[key] for key in _HOST if key in schema.host}
    gpus = tuple(replace(gpu, throttle=()) for gpu in schema.gpus)
    return replace(
        schema,
        version=0,
        interval=1.0,
        origin=0.0,
        capacity=1,
        series=series,
        loaders=loaders,
        host=host,
        gpus=gpus,
    )


def filled(document: bytes, schema: Schema) -> bytes:
    """The JSON document of `shape(schema)` with the loaders of the schema."""
    words = [{b"id": _escaped(loader.id), b"name": _escaped(loader.name)} for loader in schema.loaders]
    return _STANDS_FOR.sub(lambda found: words[int(found[1])][found[2]], document)


def _renamed(series: str, ids: dict[str, str]) -> str:
    first, _, rest = series.partition("/")
    known, _, part = rest.rpartition("/")
    return f"{first}/{ids[known]}/{part}" if first == "loader" and known in ids else series


def _escaped(text: str) -> bytes:
    """As it stands inside a JSON string."""
    return json.dumps(text)[1:-1].encode()
