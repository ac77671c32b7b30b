"""The monitor's settings, with validation shared by Python, magics and pages."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, replace
from typing import Any

from ..errors import SessionError
from ..own_files import NoPlace, expanded
from ..protocol.states import SettingsState
from ..store.charts import CHART_IDS, chart_ids, default_charts
from ..text import printable
from .experiment_log import targets

INTERVAL_S = (0.05, 60.0)
HISTORY_S = (60.0, 3600.0)
FEWEST_ROWS = 10  # rows of the charts' history at least, however long the interval

ID = re.compile(r"[\w.-]{1,64}")  # of a node
# A number with a currency before or after it; a comma is a decimal comma if it cannot separate thousands.
_PRICE = re.compile(
    r"(?P<before>[^\d\s.,+-]{0,8})\s*(?P<number>[+-]?(?:\d+(?:\.\d*|,\d\d?)?|\.\d+))\s*"
    r"(?P<after>[^\d\s.,+/-]{0,8})(?:\s*(?:/|per)\s*(?:h|hr|hour))?"
)
EXAMPLES = "2.50, 2.50 €, $2.50; 2.50 € + 0.30 with that of each CPU machine; an empty text for none."

Price = float | str
Record = bool | str | os.PathLike[str]


@dataclass(frozen=True)
class Settings:
    """Immutable; `changed` makes another one."""

    interval: float = 0.1  # s between samples
    history: float = 600.0  # s of samples kept for pages and reports
    chosen: tuple[str, ...] | None = None  # ids of the charts that the user chose; None for the default ones
    measured: frozenset[str] = frozenset()  # ids of charts that are default ones since there is something to draw
    record: bool = True  # whether the session is recorded
    record_to: str | None = None  # the folder for recordings; None for the user's default (`record.folders`)
    price: float | None = None  # of an hour of this machine, at least 0; None if unknown
    node_price: float | None = None  # of an hour of each other machine that works for a loader; None if unknown
    currency: str = ""  # of the prices, as written by the user; may be empty
    ranks: str | None = None  # the TCP address at which ranks of other machines may join; None: none may
    unfolded: tuple[str, ...] | None = None  # ids of nodes shown with their cores, `all`, `none`; None: by size
    node_names: bool = False  # whether recordings and exports may name other machines
    attach: bool = True  # whether DataLoaders that were not wrapped are measured
    log_to: tuple[str, ...] = ()  # clients whose active run gets the figures (`experiment_log.targets`)

    @property
    def charts(self) -> tuple[str, ...]:
        """Ids of the charts to draw, in the order of `store.charts`."""
        if self.chosen is not None:
            return self.chosen
        return default_charts(self.measured)

    @property
    def capacity(self) -> int:
        """Rows in the history."""
        return max(FEWEST_ROWS, math.ceil(round(self.history / self.interval, 6)))

    def to_json(self) -> SettingsState:
        """Return the settings as sent to pages."""
        found: SettingsState = {
            "interval": self.interval,
            "history": self.history,
            "charts": list(self.charts),
            "record": self.record,
            "record_to": self.record_to,
            "price": self.price,
            "node_price": self.node_price,
            "currency": self.currency,
            "node_names": self.node_names,
        }
        if self.unfolded is not None:
            found["unfolded"] = list(self.unfolded)
        return found

    def changed(
        self,
        *,
        interval: Any = None,
        history: Any = None,
        charts: Any = None,
        record: Any = None,
        price: Any = None,
        node_names: Any = None,
        ranks: Any = None,
        unfolded: Any = None,
        attach: Any = None,
        log_to: Any = None,
    ) -> Settings:
        """Return a copy with these values changed, if not None (see `Monitor.configure`); SessionError names a wrong
        one.
        """
        new = self
        if interval is not None:
            new = replace(new, interval=_seconds("interval", interval, INTERVAL_S))
        if history is not None:
            new = replace(new, history=_seconds("history", history, HISTORY_S))
        if charts is not None:
            new = replace(new, chosen=None if charts in ("default", ["default"]) else _charts(charts))
        if record is not None:
            new = replace(new, **_record(record))
        if price is not None:
            new = replace(new, **_price(price, self.currency))
        if node_names is not None:
            new = replace(new, node_names=_flag("node_names", node_names))
        if attach is not None:
            new = replace(new, attach=_flag("attach", attach))
        if ranks is not None:
            new = replace(new, ranks=_address(ranks))
        if log_to is not None:
            new = replace(new, log_to=targets(log_to))
        if unfolded is not None:
            new = replace(new, unfolded=_unfolded(unfolded))
        return new


def _flag(name: str, wanted: Any) -> bool:
    if not isinstance(wanted, bool):
        raise SessionError(f"{name} is true or false, not {wanted!r}.")
    return wanted


def _address(wanted: Any) -> str | None:
    if wanted == "":
        return None
    if not isinstance(wanted, str) or re.fullmatch(r"tcp://[\w.\-\[\]:]+:\d{1,5}", wanted) is None:
        raise SessionError(f"ranks is tcp://HOST:PORT, an address of this machine, or an empty text, not {wanted!r}.")
    return wanted


def _unfolded(wanted: Any) -> tuple[str, ...] | None:
    words = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) and ID.fullmatch(word) for word in words):
        raise SessionError(f"unfolded is a list of ids such as node-1, or all, none or default, not {wanted!r}.")
    if "default" in words:
        return None
    chosen = tuple(dict.fromkeys(words)) or ("none",)
    return next(((word,) for word in ("all", "none") if word in chosen and len(chosen) > 1), chosen)


def _seconds(name: str, value: Any, limits: tuple[float, float]) -> float:
    least, most = limits
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SessionError(f"The {name} is a number of seconds, not {value!r}.")
    if not least <= value <= most:
        raise SessionError(f"The {name} is {value:g} s; it must lie between {least:g} and {most:g} s.")
    return float(value)


def _charts(wanted: Any) -> tuple[str, ...]:
    words = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise SessionError(f"The charts are a list of ids, or all, or default, not {wanted!r}.")
    try:
        chosen = chart_ids(words)
    except ValueError as error:
        raise SessionError(f"{str(error).capitalize()}.") from error
    if not chosen:
        raise SessionError(f"Name at least one chart. The charts are {', '.join(CHART_IDS)}.")
    return chosen


def _record(wanted: Any) -> dict[str, Any]:
    if isinstance(wanted, bool):
        return {"record": wanted}
    if wanted == "":
        return {"record": True, "record_to": None}
    if not isinstance(wanted, str | os.PathLike):
        raise SessionError(f"record is true, false, or a folder for the recordings, not {wanted!r}.")
    try:
        folder = expanded(os.fsdecode(wanted))
        if b"\0" in os.fsencode(folder):
            raise ValueError("it has a null character in it")
    except NoPlace as error:
        raise SessionError(f"There is no folder for the recordings: {error}") from None
    except ValueError as error:  # UnicodeError is one
        raise SessionError(f"{wanted!r} cannot be a folder for the recordings: {error}.") from None
    return {"record": True, "record_to": str(folder)}


def _price(wanted: Any, currency: str) -> dict[str, Any]:
    """Price, node price and currency; a number alone keeps the current currency. `2.50 € + 0.30`: with a node price."""
    if isinstance(wanted, str) and not wanted.strip():
        return {"price": None, "node_price": None, "currency": ""}
    if isinstance(wanted, str) and wanted.rpartition("+")[0].strip():
        own, _, each = wanted.rpartition("+")
        here = _price(own, currency)
        there = _price(each, here["currency"])
        if there["currency"] != here["currency"]:
            raise SessionError(f"One price is in {here['currency']}, one in {there['currency']}; give both in one.")
        return {**here, "node_price": there["price"]}
    found = _PRICE.fullmatch(wanted.strip()) if isinstance(wanted, str) else None
    if found is not None and not (found["before"] and found["after"]):
        number = float(found["number"].replace(",", "."))
        currency = found["before"] or found["after"] or currency
        if printable(currency) != currency:
            raise SessionError(f"The currency {currency!r} has characters in it that cannot be shown: {EXAMPLES}")
    elif isinstance(wanted, int | float) and not isinstance(wanted, bool):
        number = float(wanted)
    else:
        raise SessionError(f"The price of an hour is a number, perhaps with a currency, not {wanted!r}: {EXAMPLES}")
    if not 0 <= number < math.inf:
        raise SessionError(f"The price of an hour is {number:g}; it must be 0 or more.")
    return {"price": number, "node_price": None, "currency": currency}
