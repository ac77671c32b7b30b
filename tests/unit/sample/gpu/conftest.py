"""GPUs that are asked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.unit.gpu_asked import OWN, Ask, Asked, Clock
from tests.unit.nvml_standin import FakeGpu, nvml


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def ask(clock: Clock) -> Iterator[Ask]:
    """Questions to these GPUs, which NVML has until the test's end."""
    with ExitStack() as stack:

        def begin(*gpus: FakeGpu, pids: frozenset[int] | None = OWN) -> Asked:
            stack.enter_context(nvml(list(gpus)))
            return Asked(clock, pids)

        yield begin
