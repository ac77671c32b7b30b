"""`python -m kernel_monitor.views`: `{"schema": …, "kind": …}` on stdin, the document's JSON on stdout."""

from __future__ import annotations

import json
import sys

from ..store import Schema
from . import document


def main() -> int:
    """Exit status 0, or 2 and one line on stderr when stdin is not a schema."""
    try:
        request = json.load(sys.stdin.buffer)
        schema, kind = Schema.from_json(request["schema"]), request["kind"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        sys.stderr.write(f"stdin is not a schema ({type(error).__name__}: {error})\n")
        return 2
    json.dump(document(schema, kind), sys.stdout, separators=(",", ":"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
