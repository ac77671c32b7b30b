"""Removes from a page what must not be sent: folders and the name of its machine, keys, names of other machines.

And what a file in UTF-8 cannot hold: the lone surrogates with which Python spells odd file names, control characters.

Records have no folders in them (`kernel_monitor.privacy`), but the user's own messages may: what is known to be a path
is reduced here once more, and what looks like one is searched for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..privacy import last_part, own_name, private, pseudonymous
from ..store import Snapshot

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with every string that came from outside made printable and freed of absolute paths.

    Other machines have their ids in place of their names, unless its facts allow the names.
    """
    if not snapshot.facts.get("node_names"):
        nodes = snapshot.schema.nodes
        names = {node.name: node.id for node in nodes if node.name != node.id}
        snapshot = with_pseudonyms(snapshot, {**own_name(), **names})
    schema = snapshot.schema
    skips = [skip for state in snapshot.loaders for skip in state.get("skips") or ()]
    known = sorted({path for skip in skips if isinstance(path := skip.get("path"), str) and path != last_part(path)})

    def text(found: str) -> str:
        # Before anything is replaced in it: a known path may have unprintable characters.
        return _UNPRINTABLE.sub("�", private(found, *known))

    gpus = tuple(replace(gpu, name=text(gpu.name), reasons=_clean(dict(gpu.reasons), text)) for gpu in schema.gpus)
    loaders = tuple(replace(loader, name=text(loader.name)) for loader in schema.loaders)
    nodes = tuple(replace(node, name=text(node.name), reason=_clean(node.reason, text)) for node in schema.nodes)
    ranks = tuple(replace(rank, host=text(rank.host), reason=_clean(rank.reason, text)) for rank in schema.ranks)
    return replace(
        snapshot,
        schema=replace(
            schema,
            gpus=gpus,
            gpu_reason=_clean(schema.gpu_reason, text),
            loaders=loaders,
            nodes=nodes,
            ranks=ranks,
            host=_clean(dict(schema.host), text),
        ),
        events=_clean(snapshot.events, text),
        loaders=_clean(snapshot.loaders, text),
        facts=_clean(dict(snapshot.facts), text),
    )


def cleaned(value: Any) -> Any:
    """Return a JSON-able value with its strings made printable and freed of absolute paths."""
    return _clean(value, lambda found: _UNPRINTABLE.sub("�", private(found)))


def with_pseudonyms(snapshot: Snapshot, names: Mapping[str, str]) -> Snapshot:
    """Return the snapshot with each of these machines' names replaced by its pseudonym, nodes' by their ids."""
    nodes = tuple(
        replace(node, name=node.id, reason=pseudonymous(node.reason, names)) for node in snapshot.schema.nodes
    )
    return replace(
        snapshot,
        schema=replace(
            snapshot.schema,
            nodes=nodes,
            ranks=tuple(replace(rank, host=pseudonymous(rank.host, names)) for rank in snapshot.schema.ranks),
        ),
        events=pseudonymous(snapshot.events, names),
        loaders=pseudonymous(snapshot.loaders, names),
        facts=pseudonymous(dict(snapshot.facts), names),
    )


def _clean(value: Any, text: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        return [_clean(item, text) for item in value]
    if isinstance(value, dict):
        return {
            key: text(last_part(item)) if key == "path" and isinstance(item, str) else _clean(item, text)
            for key, item in value.items()
        }
    return value
