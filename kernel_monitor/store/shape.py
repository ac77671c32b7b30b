"""The part of a schema that its chart document depends on: the machine's shape and the choice of charts.

Sessions with equal shapes share one chart document. It has placeholders for the loaders' ids and names, which each
session replaces.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from .schema import LoaderInfo

if TYPE_CHECKING:
    from .schema import Schema

_HOST = ("topology", "limits", "reasons")  # the facts of the host that charts show
_PLACEHOLDER = re.compile(rb"kmloader(\d{1,4})(id|name)kmend")


def shape(schema: Schema) -> Schema:
    """The schema without the parts that differ from session to session; documents are made from it alone."""
    loaders = tuple(
        LoaderInfo(id=f"kmloader{k}idkmend", name=f"kmloader{k}namekmend", phased=loader.phased)
        for k, loader in enumerate(schema.loaders)
    )
    ids = {loader.id: ours.id for loader, ours in zip(schema.loaders, loaders, strict=True)}
    renamed = tuple(replace(series, name=_renamed(series.name, ids)) for series in schema.series)
    host = {key: schema.host[key] for key in _HOST if key in schema.host}
    gpus = tuple(replace(gpu, throttle=()) for gpu in schema.gpus)
    return replace(
        schema,
        version=0,
        interval=1.0,
        origin=0.0,
        capacity=1,
        series=renamed,
        loaders=loaders,
        host=host,
        gpus=gpus,
    )


def filled(document: bytes, schema: Schema) -> bytes:
    """The JSON document of `shape(schema)` with the loaders of the schema."""
    words = [{b"id": _escaped(loader.id), b"name": _escaped(loader.name)} for loader in schema.loaders]

    def word(found: re.Match[bytes]) -> bytes:
        number = int(found[1])
        return words[number][found[2]] if number < len(words) else found[0]  # what a recording calls some GPU

    return _PLACEHOLDER.sub(word, document)


def _renamed(series: str, ids: dict[str, str]) -> str:
    first, _, rest = series.partition("/")
    known, _, part = rest.rpartition("/")
    return f"{first}/{ids[known]}/{part}" if first == "loader" and known in ids else series


def _escaped(text: str) -> bytes:
    """As inside a JSON string."""
    return json.dumps(text)[1:-1].encode()
