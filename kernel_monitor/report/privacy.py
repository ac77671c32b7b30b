"""What a page that is sent to somebody must not hold: where files lie on the machine that it came from.

And what a file in UTF-8 cannot hold: the lone surrogates with which Python spells odd file names, control characters.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..store import Snapshot

_SCHEME = re.compile(r"\bfile:/{2}(?=/)")
# A home is its owner's name.
_HOME = re.compile(r"""(?<![\w/:.<])(?:/home|/Users|[A-Za-z]:[\\/]Users)[\\/][^\s\\/'"<>|:,;)\]]+""")
# At least two parts, and not inside a word or an address: "images/s" and "</b>" are not paths.
_POSIX = re.compile(r"""(?<![\w/:.<])~?/(?:[^\s/'"<>|]+/)+([^\s/'"<>|:,;)\]]*)""")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_WINDOWS = re.compile(r"""(?<!\w)[A-Za-z]:[\\/](?:[^\s\\/'"<>|]+[\\/])*([^\s\\/'"<>|:,;)\]]*)""")


def without_paths(text: str) -> str:
    """`text` with absolute paths cut down to their last part: `…/cat.jpg`."""
    for pattern, left in ((_SCHEME, ""), (_HOME, "~"), (_POSIX, r"…/\1"), (_WINDOWS, r"…/\1")):
        text = pattern.sub(left, text)
    return text


def clean(snapshot: Snapshot) -> Snapshot:
    """The snapshot with every string that came from outside made printable and freed of absolute paths."""
    schema = snapshot.schema
    gpus = tuple(replace(gpu, name=_text(gpu.name), reasons=_clean(dict(gpu.reasons))) for gpu in schema.gpus)
    loaders = tuple(replace(loader, name=_text(loader.name)) for loader in schema.loaders)
    return replace(
        snapshot,
        schema=replace(
            schema,
            gpus=gpus,
            gpu_reason=_clean(schema.gpu_reason),
            loaders=loaders,
            host=_clean(dict(schema.host)),
        ),
        events=_clean(snapshot.events),
        loaders=_clean(snapshot.loaders),
        facts=_clean(dict(snapshot.facts)),
    )


def _text(text: str) -> str:
    return without_paths(_UNPRINTABLE.sub("�", text))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return [_clean(one) for one in value]
    if isinstance(value, dict):
        return {key: _clean(one) for key, one in value.items()}
    return value
