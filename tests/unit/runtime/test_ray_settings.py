"""The settings of the engine `ray`, which is an optional part."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_monitor.errors import SessionError
from kernel_monitor.ray.cluster import Chosen
from kernel_monitor.runtime import process_monitor
from kernel_monitor.runtime.process_monitor import Monitor


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chosen, "address", None)
    monkeypatch.setattr(Chosen, "send_files", None)


def test_they_are_those_of_the_process() -> None:
    Monitor().configure(ray="head:6379", send_files=False)
    assert (Chosen.address, Chosen.send_files) == ("head:6379", False)
    Monitor().configure(send_files="auto")
    assert (Chosen.address, Chosen.send_files) == ("head:6379", None)
    Monitor().configure(ray="")
    assert Chosen.address is None


@pytest.mark.parametrize("wrong", [{"ray": "head"}, {"ray": 5}, {"send_files": "yes"}, {"interval": -1.0}])
def test_none_is_changed_where_one_is_not_accepted(wrong: dict[str, Any]) -> None:
    with pytest.raises(SessionError):
        Monitor().configure(**{"ray": "head:6379", "send_files": True, **wrong})
    assert (Chosen.address, Chosen.send_files) == (None, None)


@pytest.mark.parametrize("given", [{"ray": "auto"}, {"ray": ""}, {"send_files": True}])
def test_without_the_engine_they_are_refused(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    monkeypatch.setattr(process_monitor, "plugin", lambda _: None)
    with pytest.raises(SessionError, match="the engine ray, which is not installed"):
        Monitor().configure(**given)
    Monitor().configure(history=60.0)
