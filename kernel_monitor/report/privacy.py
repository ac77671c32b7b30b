"""What a page that is sent to somebody must not hold: where files lie on the machine that it came from.

And what a file in UTF-8 cannot hold: the lone surrogates with which Python spells odd file names, control characters.

Records have no folders in them (`kernel_monitor.paths`), but the user's own messages may: what is known to be a path is
reduced here once more, and what looks like one is searched for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..paths import last_part, private
from ..store import Snapshot

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(snapshot: Snapshot) -> Snapshot:
    """The snapshot with every string that came from outside made printable and freed of absolute paths."""
    schema = snapshot.schema
    skips = [skip for state in snapshot.loaders for skip in state.get("skips") or ()]
    known = sorted({path for skip in skips if isinstance(path := skip.get("path"), str) and path != last_part(path)})

    def text(found: str) -> str:
        # Before anything is replaced in it: a known path may have unprintable characters.
        return _UNPRINTABLE.sub("�", private(found, *known))

    gpus = tuple(replace(gpu, name=text(gpu.name), reasons=_clean(dict(gpu.reasons), text)) for gpu in schema.gpus)
    loaders = tuple(replace(loader, name=text(loader.name)) for loader in schema.loaders)
    return replace(
        snapshot,
        schema=replace(
            schema,
            gpus=gpus,
            gpu_reason=_clean(schema.gpu_reason, text),
            loaders=loaders,
            host=_clean(dict(schema.host), text),
        ),
        events=_clean(snapshot.events, text),
        loaders=_clean(snapshot.loaders, text),
        facts=_clean(dict(snapshot.facts), text),
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
