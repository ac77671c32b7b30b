"""Where no rank can join, the reason is one sentence, wherever it is asked for."""

from __future__ import annotations

import sys

import pytest

from kernel_monitor.ranks import session_files
from kernel_monitor.ranks.rank_tracker import RankTracker
from kernel_monitor.ranks.session_files import JoinError
from kernel_monitor.store import Store


@pytest.mark.parametrize("lacks", ["pyzmq", "a folder for a socket"])
def test_what_is_missing_is_named_with_the_remedy(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacks == "pyzmq":
        monkeypatch.setitem(sys.modules, "zmq", None)  # as Python has a package that cannot be imported
    else:
        monkeypatch.setattr(session_files, "_places", list)
    tracker = RankTracker(Store(), lambda _: None, lambda *_, **__: None)
    tracker.begin(None)
    remedy = {"pyzmq": "pip install pyzmq.", "a folder for a socket": "set TMPDIR to one with a short path."}[lacks]
    with pytest.raises(JoinError, match=r"^Ranks cannot join: ") as raised:
        tracker.join_words()
    assert str(raised.value).endswith(remedy)
    assert str(raised.value).count("Ranks cannot join") == 1


def test_before_the_monitor_runs_that_is_the_reason() -> None:
    with pytest.raises(JoinError, match=r"^Ranks cannot join: the monitor does not run; %monitor start starts it\.$"):
        RankTracker(Store(), lambda _: None, lambda *_, **__: None).join_words()
