"""The monitor runs while another thread imports the loaders, and torch with them, which takes seconds."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from kernel_monitor.runtime import Monitor
from kernel_monitor.runtime.loader_tracker import LoaderTracker
from kernel_monitor.steps.watched_loader import phase, step
from kernel_monitor.store import Store


@pytest.mark.parametrize("name", ["kernel_monitor.loaders", "kernel_monitor.steps.watched_loader"])
def test_a_module_that_is_being_imported_has_no_loaders_yet(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, ModuleType(name))  # what others see of it until its last line has run
    following = LoaderTracker(Store(), lambda monotonic: monotonic, lambda *_args, **_fields: None)
    assert following.loaders() == []
    assert isinstance(following.refresh(), list)


@pytest.mark.parametrize("name", ["torch", "torch.cuda", "kernel_monitor.steps.phase_times"])
def test_what_is_being_imported_stands_in_no_one_s_way(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == "torch.cuda":
        torch = ModuleType("torch")
        monkeypatch.setattr(torch, "cuda", ModuleType(name), raising=False)
        monkeypatch.setitem(sys.modules, "torch", torch)
    else:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with step("importing"), phase("forward"):
        pass
    assert isinstance(Monitor().status(), str)
    assert Monitor().step_notices() == []
