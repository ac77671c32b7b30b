"""The JSON Schema of the protocol, made from the types in `kernel_monitor.protocol`.

`python -m tests.wire.schema` prints it with the protocol's constants; `make protocol` makes the page's types from that.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
from pydantic import TypeAdapter
from typing_extensions import is_typeddict

from kernel_monitor import __version__
from kernel_monitor.protocol import analysis_states, message_types, states

OPEN = {"Event", "Notice"}
"""Types with further fields, which depend on their `kind`."""


@cache
def schema() -> dict[str, Any]:
    """A schema whose `$defs` are all types of the protocol; unknown fields are errors, except in `OPEN`."""
    types = [value for module in (states, analysis_states, message_types) for value in vars(module).values()]
    unique = {value.__name__: value for value in types if is_typeddict(value)}
    refs, whole = TypeAdapter.json_schemas(
        [(name, "validation", TypeAdapter(value)) for name, value in unique.items()], ref_template="#/$defs/{model}"
    )
    defs = whole["$defs"]
    assert {name for name, _ in refs} == defs.keys()
    for name, definition in defs.items():
        definition["additionalProperties"] = name in OPEN
        for field in definition["properties"].values():
            field.pop("title", None)
    return {"title": "Protocol", "$defs": defs}


def validate(content: object, kind: str) -> None:
    """Raise where a message's content is not of a type of the protocol."""
    jsonschema.Draft202012Validator({**schema(), "$ref": f"#/$defs/{kind}"}).validate(content)


def for_page() -> str:
    """The input of `widgets/protocol.mjs`."""
    names = {name: value for name, value in vars(message_types).items() if name.isupper()}
    return json.dumps({"constants": {**names, "VERSION": __version__}, "schema": schema()}, indent=1)


if __name__ == "__main__":
    print(for_page())
