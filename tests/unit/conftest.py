"""Fixtures that tests of several packages use."""

from __future__ import annotations

import weakref

import pytest


@pytest.fixture
def no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other machine has an id or a name, nor a source that reports it."""
    from kernel_monitor import node_sources

    monkeypatch.setattr(node_sources, "_ids", {})
    monkeypatch.setattr(node_sources, "_pseudonyms", {})
    # A test's exceptions hold the frames in which they were raised, and these their source.
    monkeypatch.setattr(node_sources, "_live", weakref.WeakValueDictionary())


@pytest.fixture
def no_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """No loop of another test is among those that are watched."""
    from kernel_monitor.steps import watched_loader

    monkeypatch.setattr(watched_loader, "_live", weakref.WeakValueDictionary())
    monkeypatch.setattr(watched_loader._loops, "by_name", {})
