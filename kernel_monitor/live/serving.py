"""What pages are sent without asking: frames, glances and notices, and only while somebody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..diagnose import strip as switch_strip
from ..diagnose.switches import LONGEST_S, asked, first, switches
from ..store.charts import available
from ..stream import wire
from ..stream.glance import PERIOD_S, glance
from ..stream.hub import FRAMES, GLANCE, Hub, Publisher
from .judging import Judging
from .sampling import version

if TYPE_CHECKING:
    from ..store import Store
    from .sampling import Row, Sampling
    from .settings import Settings

STRIP_PERIOD_S = 1.0
STRIP_CHARTS = ("cpu", "gpu", "images", "wait")
"""Whose series the strip is made from."""
SETTLED_S = 60.0
"""How long after its first batch an engine may still hand out what it had in advance."""


class Serving:
    """The stream to all pages of one kernel.

    Args:
        store: what is shown.
        hub: who looks.
        settings: the settings now.
        tasks: what a person has started and how far it is (`diagnosing`, `profiling`); states that are replaced, not
            changed.
    """

    def __init__(
        self, store: Store, hub: Hub, settings: Callable[[], Settings], tasks: Callable[[], Mapping[str, Any]]
    ) -> None:
        self.judging = Judging(store)
        self.strip: dict[str, Any] | None = None
        self.sampling: Sampling | None = None
        self._store = store
        self._hub = hub
        self._settings = settings
        self._tasks = tasks
        self._publish: Publisher | None = None
        self._strip_due = 0.0
        self._strip_of = 0
        self._glance_due = 0.0
        self._sent_event = 0
        self._sent: dict[str, Any] = {"offers": []}
        self._told_paused = False
        self._charts: tuple[int, list[dict[str, Any]]] = (-1, [])

    def connect(self, publish: Publisher | None) -> None:
        """Give the way to the pages (None takes it away)."""
        self._publish = publish

    def hello(self) -> dict[str, Any]:
        """The answer to a page's first question: who is there, and in which state."""
        sampling = self.sampling
        return {
            "protocol": wire.PROTOCOL,
            "version": __version__,
            "environment": Path(sys.prefix).name,
            "ipykernel": _version("ipykernel"),
            "bokeh": _version("bokeh"),
            "running": sampling is not None and sampling.client is not None,
            "session": None if sampling is None else sampling.session,
            **self.state(),
        }

    def state(self) -> dict[str, Any]:
        """What can be set, what charts there are, and whether this session is recorded."""
        schema = self._store.schema
        if self._charts[0] != schema.version:
            self._charts = schema.version, available(schema)
        return {
            "settings": self._settings().to_json(),
            "charts": self._charts[1],
            "recording": None if self.sampling is None else self.sampling.recording.to_json(),
        }

    def findings(self) -> dict[str, Any]:
        """`verdict` as it was last reached, `offers` that nobody has answered, `diagnosing` and `profiling`."""
        return {"verdict": self.judging.verdict, "offers": self.judging.offers.standing, **self._tasks()}

    def notify(self, kind: str, **fields: Any) -> None:
        """Tell all pages about a change that they did not ask for themselves."""
        publish = self._publish
        if publish is not None:
            publish(wire.NOTICE, {"kind": kind, **self.hello(), **fields})

    def row(self, row: Row) -> None:
        """Send what a new row brings to those who look. On the sampler's reader thread."""
        if self.sampling is not None:
            self.judging.predict(row.states, self.sampling.add_event)
        publish, hub = self._publish, self._hub
        frames, glances = hub.wanted(FRAMES), hub.wanted(GLANCE)
        if publish is None or not (frames or glances):
            self._told_paused = False
            return
        if hub.paused:
            if not self._told_paused:
                self._told_paused = True
                self.notify("paused")
            return
        self._told_paused = False
        if frames:
            self._frame(publish, row)
        if glances and row.sampled >= self._glance_due:
            # A little early rather than a frame late.
            self._glance_due = row.sampled + PERIOD_S - min(0.5, self._settings().interval) / 2
            self.judging.refresh(row.time, row.states)
            publish(wire.GLANCE, {"protocol": wire.PROTOCOL, "session": self._session, **self.glance()})

    def glance(self) -> dict[str, Any]:
        """The figures of a status bar, the kind of the verdict now, and the recording's state."""
        sampling, store = self.sampling, self._store
        last = max(1, round(PERIOD_S / self._settings().interval))
        live = [] if sampling is None else [loader.id for loader in sampling.following.loaders()]
        now = None if sampling is None else sampling.session_time(time.monotonic())
        return {
            **glance(store.rows(store.last_seq - last), loaders=live),
            "kind": None if now is None else self.judging.kind(now),
            "recording": None if sampling is None else sampling.recording.to_json(),
        }

    @property
    def _session(self) -> str | None:
        return None if self.sampling is None else self.sampling.session

    def _frame(self, publish: Publisher, row: Row) -> None:
        self._refresh_strip(row)
        self.judging.refresh(row.time, row.states, self._tasks(), self.strip)
        version, values = self._store.newest_page_row()
        events = self._store.events(self._sent_event) if self._store.last_event > self._sent_event else []
        if events:
            self._sent_event = events[-1]["id"]
        now = time.time()
        content = {
            "protocol": wire.PROTOCOL,
            "session": self._session,
            "schema": version,
            "seq": row.seq,
            "time": row.time,
            "sampled": now - (time.monotonic() - row.sampled),
            "sent": now,
            "missed": row.missed,
            "loaders": row.states,
            "events": events,
            "strip": self.strip,
        }
        recording = None if self.sampling is None else self.sampling.recording.to_json()
        for key, value in {"recording": recording, **self.findings()}.items():
            sent = self._sent.get(key)
            if value is not sent and value != sent:
                content[key] = self._sent[key] = value
        publish(wire.FRAME, content, [wire.encode_values(values)])

    def _refresh_strip(self, row: Row) -> None:
        if row.time < self._strip_due:
            return
        self._strip_due = row.time + STRIP_PERIOD_S
        events = self._store.events()
        done = switches(events)
        # A minute on each side is compared (diagnose.switches): later the text stays as it is.
        if not done or (self._strip_of == len(done) and row.time > first(done[-1]) + LONGEST_S + SETTLED_S):
            return
        self._strip_of = len(done)
        since = self._store.seq_before(asked(done[-1]) - LONGEST_S - SETTLED_S)
        self.strip = switch_strip(self._store.rows(since, STRIP_CHARTS), events, row.states)


@lru_cache(maxsize=2)
def _version(distribution: str) -> str | None:
    # Looked up once: an answer on the control channel takes no longer than a millisecond.
    return version(distribution)
