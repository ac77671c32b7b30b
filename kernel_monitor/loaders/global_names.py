"""The names that functions look up in their globals."""

from __future__ import annotations

import dis
import functools
from types import CodeType


@functools.lru_cache(maxsize=4096)
def global_names(code: CodeType) -> tuple[str, ...]:
    """Return the global names that compiled code reads, that of functions inside it included, each once.

    Names of attributes are not among them: a function that is sent to another process has there those globals only
    that it reads, and must look the same in both.
    """
    found = [step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += global_names(constant)
    return tuple(dict.fromkeys(found))
