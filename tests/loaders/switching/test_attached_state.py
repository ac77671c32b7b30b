"""The state of an attached loader while a click is under way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from kernel_monitor.loaders import takeover
from kernel_monitor.loaders.switchable import switchable_of_attached
from kernel_monitor.steps import attached

from ..conftest import augmented


@pytest.fixture
def attaching() -> Iterator[None]:
    assert attached.attach()
    yield
    attached.detach()


def test_while_it_is_examined_it_says_what_it_switches_to(
    folder: Path, attaching: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(ImageFolder(str(folder), augmented()), batch_size=40)
    batches = iter(loader)
    seen = len(next(batches)[1])
    source = attached.attached(loader)
    assert source is not None
    engines = takeover.takeover(source)
    states = []

    def examined(*args: Any) -> Any:
        made = switchable_of_attached(*args)
        states.append(engines.state())
        return made

    monkeypatch.setattr(takeover, "switchable_of_attached", examined)
    engines.switch("dali-cpu")
    seen += sum(len(labels) for _, labels in batches)
    assert seen == 243
    assert [(state["backend"], state["wanted"], state["status"]) for state in states] == [
        ("torchvision", "dali-cpu", "switching to dali-cpu…")
    ]
    assert engines.clicks
    engines.release()
