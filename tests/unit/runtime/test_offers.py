"""Which switch is offered to a loop that waits for its data, when, and how often: once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kernel_monitor.analysis.results import faster
from kernel_monitor.protocol.analysis_states import OfferState
from kernel_monitor.runtime.current_verdict import BOUND_S, OVER_S, PERIOD_S, Offers
from kernel_monitor.steps.measured_step import NO_GRADIENTS, ON_DEVICE
from kernel_monitor.store import Snapshot
from tests.unit.analysis.test_advice import LOADING
from tests.unit.checks import not_none
from tests.unit.sessions import Run, build, calibrated, diagnosed, live, state, switch

READY = [
    {"name": name, "available": True, "reason": None, "confirm": confirm, "note": None}
    for name, confirm in (("torchvision", None), ("dali-cpu", None), ("dali-gpu", None), ("synthetic", "Replay?"))
]
GPU: dict[str, Any] = {"gpus": 1, "gpu": 15.0}


# -- which ------------------------------------------------------------------------------------------------------------


def starved(*events: dict[str, Any], **more: Any) -> Snapshot:
    """Two busy cores, most of whose work is loading, which DALI does in half the time."""
    given: dict[str, Any] = {
        "cpus": 2, "busy": 99.0, "kernel": 12.0, "workers": 171.0, "runs": [Run(0, 40, step=0.1, wait=0.08)],
        "states": [calibrated(0.5 * LOADING)],
    }  # fmt: skip
    return build(40, events=events, **{**given, **more})


def told(snapshot: Snapshot, loader: str | None = None) -> dict[str, Any]:
    return not_none(live(snapshot, loader=loader))


def offered(snapshot: Snapshot, loader: str | None = None) -> dict[str, Any] | None:
    return cast("dict[str, Any] | None", told(snapshot, loader)["offer"])


def test_what_is_predicted_to_be_faster_is_offered_with_the_prediction() -> None:
    one = not_none(offered(starved()))
    assert one["engine"] == "dali-cpu"
    assert 0.2 < one["gain"]["low"] < one["gain"]["high"] < 0.7
    words = faster(one["gain"]["low"], one["gain"]["high"])
    assert one["advice"] == f"dali-cpu is ready: it is expected to run {words} than torchvision."
    assert one["advised"][0]["points"] == [{"about": "engine", "target": "dali-cpu", "stance": "for"}]


def test_what_was_measured_goes_before_it() -> None:
    one = not_none(offered(starved(diagnosed({"torchvision": 320.0, "dali-cpu": 500.0}))))
    assert one["advice"] == "dali-cpu is ready: Diagnose measured it 1.56 × faster than torchvision."
    events = (switch(12.0, "torchvision", "dali-cpu"), switch(24.0, "dali-cpu", "torchvision"))
    runs = [Run(0, 12, 0.1, 0.08), Run(12, 24, 0.06, 0.04), Run(24, 40, 0.1, 0.08)]
    one = not_none(offered(starved(*events, runs=runs)))
    assert one["advice"] == "dali-cpu is ready: it ran 1.67 × faster than torchvision in this loop."


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([diagnosed({"torchvision": 320.0, "dali-cpu": 200.0})], {}),
        ([diagnosed({"torchvision": 320.0, "dali-cpu": 321.0})], {}),
        ([], calibrated(1.8 * LOADING)),
        ([], calibrated(0.97 * LOADING)),
        ([], {"backends": [{**one, "note": "Lambda runs on the loop's own thread"} for one in READY]}),
        ([], {"backends": [{**one, "confirm": "Sure?"} for one in READY]}),
        ([diagnosed({"torchvision": 320.0, "synthetic": 3200.0})], {"backends": [READY[0], READY[3]]}),
    ],
    ids=[
        "measured slower",
        "measured alike",
        "predicted slower",
        "predicted alike",
        "a note",
        "asks first",
        "replayed",
    ],
)
def test_what_is_no_faster_leaves_work_to_others_or_asks_first_is_not_offered(
    events: list[dict[str, Any]], state: dict[str, Any]
) -> None:
    assert offered(starved(*events, states=[state])) is None


def test_a_prediction_that_leaves_room_for_a_loss_says_so() -> None:
    one = not_none(offered(starved(states=[calibrated(0.82 * LOADING, error=0.28 * LOADING)])))
    assert one["advice"].startswith("dali-cpu is ready: it is expected to run between ")
    assert one["advice"].endswith(" × faster than torchvision. Try it: the way back is one click.")
    assert one["advised"][0]["points"][0]["stance"] == "neutral"


def test_without_a_prediction_it_is_offered_in_words_that_say_so() -> None:
    one = not_none(offered(starved(states=[{}])))
    words = "dali-cpu is ready. It is not measured in this loop yet: try it, the way back is one click."
    assert (one["advice"], one["gain"]) == (words, None)
    assert not_none(offered(starved(states=[{"backends": READY}], **GPU)))["engine"] == "dali-gpu"


def test_an_engine_that_is_being_measured_on_some_files_is_not_offered_before_that_is_done() -> None:
    def state(how: str) -> dict[str, Any]:
        found = {"state": how, "files": 32, "seconds": None, "error": None, "reason": None}
        return {"calibration": {"dali-cpu": found}}

    assert offered(starved(states=[state("running")])) is None
    one = not_none(offered(starved(states=[state("failed")])))
    assert "It is not measured in this loop yet" in one["advice"]


def test_threads_are_offered_untried_only_where_there_is_no_dali() -> None:
    threads = {**READY[0], "name": "threads"}
    with_dali, without = ([READY[0], *others, threads] for others in ([READY[1]], []))
    assert not_none(offered(starved(states=[{"backends": without}])))["engine"] == "threads"
    assert offered(starved(states=[{**calibrated(1.8 * LOADING), "backends": with_dali}])) is None
    running = {"state": "running", "files": 32, "seconds": None, "error": None, "reason": None}
    assert offered(starved(states=[{"calibration": {"dali-cpu": running}, "backends": with_dali}])) is None
    measured = diagnosed({"torchvision": 320.0, "threads": 500.0})
    one = not_none(offered(starved(measured, states=[{"backends": with_dali}])))
    assert one["advice"] == "threads is ready: Diagnose measured it 1.56 × faster than torchvision."


@pytest.mark.parametrize("knobs", [{"workers": 2, "prefetch": 2, "threads": 2}, {"workers": 0, "prefetch": 2}])
def test_a_loop_that_waits_for_its_storage_is_offered_nothing(knobs: dict[str, int]) -> None:
    """What loads hardly computes, though cores are free: another decoder would wait as well."""
    workers = 20.0 if knobs["workers"] else None
    snapshot = starved(busy=20.0, workers=workers, kernel=12.0, states=[{"knobs": knobs}])
    assert told(snapshot)["kind"] == "input-bound"
    assert offered(snapshot) is None


def test_few_workers_that_compute_all_the_while_leave_room_for_an_offer() -> None:
    states = [{"knobs": {"workers": 1, "prefetch": 2, "threads": 1}, "backends": READY}]
    one = not_none(offered(starved(cpus=16, busy=10.0, workers=98.0, states=states, **GPU)))
    assert one["engine"] == "dali-gpu"


def test_a_loop_that_does_not_wait_is_offered_nothing() -> None:
    phases = {"forward": 0.04, "backward": 0.05, "optimizer": 0.005}
    snapshot = starved(runs=[Run(0, 40, step=0.1, wait=0.001, phases=phases, flags=ON_DEVICE)])
    assert told(snapshot)["kind"] == "compute-bound"
    assert offered(snapshot) is None


def test_an_evaluation_beside_a_training_is_offered_nothing() -> None:
    runs = [
        Run(0, 20, 0.1, 0.08), Run(20, 40, 0.1, 0.08, loader="loader-2", flags=NO_GRADIENTS), Run(40, 60, 0.1, 0.08),
    ]  # fmt: skip
    loaders = {"loader-1": "train", "loader-2": "val"}
    snapshot = starved(runs=runs, loaders=loaders, states=[{}, {}])
    assert told(snapshot, "loader-2")["kind"] == "input-bound"
    assert (offered(snapshot) is None, offered(snapshot, "loader-2")) == (False, None)


# -- when -------------------------------------------------------------------------------------------------------------

GAIN = {"action": "dali-cpu", "low": 0.3, "high": 0.5, "measured": None, "basis": "", "by": ""}
MAY = {"engine": "dali-cpu", "advised": [], "advice": "dali-cpu is ready.", "gain": GAIN}


class Session:
    """Verdicts every two seconds, as `CurrentVerdict` reaches them."""

    def __init__(self) -> None:
        self.offers = Offers()
        self.states = [state()]
        self.now = 0.0
        self.more: dict[str, Any] = {}

    def run(self, seconds: float, kind: str = "input-bound", **fields: Any) -> list[OfferState]:
        """What is offered after so many more seconds of a loop of that kind."""
        verdict = {
            "loader": "loader-1", "kind": kind, "segment": "train", "gains": [],
            "offer": MAY if kind == "input-bound" else None, **fields,
        }  # fmt: skip
        until = self.now + seconds
        while self.now < until - 1e-6:
            self.now += PERIOD_S
            self.offers.refresh(self.states)
            self.offers.judge(self.now, verdict, self.states, **{"busy": False, **self.more})
        return self.offers.standing

    def wrap(self, number: int, **fields: Any) -> None:
        """The cell is run again: another loader takes the place of the last one."""
        gone = [{**one, "ended": True} for one in self.states]
        self.states = [*gone, state(f"loader-{number}", **fields)]
        self.run(PERIOD_S, loader=f"loader-{number}")


@pytest.fixture
def session() -> Session:
    return Session()


def test_it_comes_after_ten_seconds_and_stays(session: Session) -> None:
    assert BOUND_S == 10
    assert session.run(PERIOD_S + BOUND_S - PERIOD_S) == []
    assert session.run(PERIOD_S) == [
        {"loader": "loader-1", "source": "torchvision", "engine": "dali-cpu", "sentence": MAY["advice"], "gain": GAIN}
    ]
    first = session.run(PERIOD_S)
    assert session.run(60) is first, "what did not change is not sent again"
    other = {
        **MAY,
        "advice": "dali-cpu is ready, and the figures are a little different.",
        "gain": {**GAIN, "low": 0.2},
    }
    assert session.run(20, offer=other) is first
    assert session.run(20, offer=None) is first


@pytest.mark.parametrize("change", [{"kind": "undetermined"}, {"segment": "train@12.000"}, {"loader": "loader-2"}])
def test_the_seconds_count_only_in_one_go(session: Session, change: dict[str, str]) -> None:
    session.run(8)
    session.states.append(state("loader-2", "val"))
    session.run(4, **change)
    rest = change if "segment" in change else {}
    assert session.run(6 if rest else 2, **rest) == []
    assert session.run(10, **rest) != []


def test_what_nobody_saw_does_not_count(session: Session) -> None:
    session.run(2)
    session.now += 100.0  # the page was hidden
    assert session.run(2) == []


@pytest.mark.parametrize("more", [{"busy": True}, {"backs": [("loader-1", "dali-cpu")]}])
def test_there_is_none_while_engines_are_tried_nor_for_the_way_back(session: Session, more: dict[str, Any]) -> None:
    session.more = more
    assert session.run(40) == []


def test_there_is_none_while_a_switch_is_pending(session: Session) -> None:
    session.states = [state(wanted="dali-cpu")]
    assert session.run(40) == []


@pytest.mark.parametrize("answer", ["declined", "taken", "by hand", "not bound", "measured", "seen to be slower"])
def test_once_answered_it_never_comes_back_nor_for_the_loader_of_a_cell_run_again(
    session: Session, answer: str
) -> None:
    assert session.run(14) != []
    slower = {**GAIN, "measured": -0.2, "by": "Diagnose"}
    if answer == "declined":
        assert session.offers.decline("loader-1")
        assert not session.offers.decline("loader-1")
    elif answer == "taken":
        session.offers.chosen(state(wanted="dali-cpu"))
    elif answer == "by hand":  # the loader's own switch(): seen at the next look
        session.states = [state(backend="synthetic")]
        session.run(2)
        session.states = [state()]
    elif answer == "not bound":
        assert session.run(OVER_S - PERIOD_S, "undetermined") != []
        session.run(PERIOD_S, "undetermined")
    elif answer == "measured":
        session.run(2, gains=[{**slower, "measured": 0.01}], offer=None)
    else:
        session.run(2, gains=[slower], offer=None)
    assert session.offers.standing == []
    assert session.run(60) == []
    session.wrap(2)
    assert session.run(60, loader="loader-2") == []


def test_the_same_choice_again_is_no_answer(session: Session) -> None:
    session.run(14)
    session.offers.chosen(state())
    assert session.offers.standing != []


def test_an_offer_that_nobody_answered_is_open_for_the_next_loader_of_that_name(session: Session) -> None:
    assert session.run(14) != []
    session.wrap(2)
    assert session.offers.standing == []
    assert [one["loader"] for one in session.run(14, loader="loader-2")] == ["loader-2"]


@pytest.mark.parametrize(("batches", "again"), [(640, False), (80, True)])
def test_a_loader_without_a_name_is_known_by_the_length_of_its_epochs(
    session: Session, batches: int, again: bool
) -> None:
    session.states = [state(name="loader-1")]
    session.run(14)
    session.offers.decline("loader-1")
    session.wrap(2, name="loader-2", batches=batches)
    assert (session.run(30, loader="loader-2") != []) is again


def test_no_to_one_loader_is_none_to_another(session: Session) -> None:
    session.run(14)
    session.offers.decline("loader-1")
    session.states.append(state("loader-2", "second"))
    assert [one["loader"] for one in session.run(14, loader="loader-2")] == ["loader-2"]


def test_what_diagnose_tries_is_nobodys_choice_and_what_it_measures_is_said(session: Session) -> None:
    session.run(14)
    session.offers.refresh([state(backend="dali-cpu")], diagnosing=True)
    assert session.offers.standing != []
    measured = {**GAIN, "measured": 0.46, "by": "Diagnose"}
    better = {**MAY, "advice": "dali-cpu is ready: Diagnose measured 46 %.", "gain": measured}
    session.run(2, gains=[measured], offer=better)
    assert [one["sentence"] for one in session.offers.standing] == [better["advice"]]
    session.offers.refresh([state(backend="dali-cpu")])
    assert session.offers.standing == []


def test_what_was_slower_once_is_not_offered_though_the_loop_is_another_now(session: Session) -> None:
    session.run(4, gains=[{**GAIN, "measured": -0.1, "by": "switch"}], offer=None)
    assert session.run(40, segment="train@20.000") == []


def test_an_ended_loader_leaves_nothing(session: Session) -> None:
    session.run(14)
    session.states = [state(ended=True)]
    session.offers.refresh(session.states)
    assert session.offers.standing == []
    session.run(2)
    assert vars(session.offers)["_open"] == vars(session.offers)["_bound"] == {}
