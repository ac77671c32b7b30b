"""The monitor's settings, with validation shared by Python, magics and pages."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..errors import SessionError
from ..own_files import NoPlace, expanded
from ..protocol.states import SettingsState
from ..store.charts import CHART_IDS, chart_ids, default_charts
from ..text import line, printable, quoted
from .experiment_log import targets

INTERVAL_S = (0.05, 60.0)
HISTORY_S = (60.0, 3600.0)
FEWEST_ROWS = 10  # rows of the charts' history at least, however long the interval

_MOST_IDS = 1000  # of nodes in `unfolded`; there are fewer
_LONGEST_PATH = 4096  # bytes
_LONGEST_PRICE = 500  # letters
_HIGHEST_PRICE = 1e12
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

    def changed(self, **wanted: Any) -> Settings:
        """Return a copy with these values changed, if not None (see `Monitor.configure`); SessionError names a wrong
        one.
        """
        new = self
        for name, value in wanted.items():
            if value is not None:
                new = replace(new, **_CHANGES[name](value, new))
        return new


def _flag(name: str, wanted: Any) -> bool:
    if not isinstance(wanted, bool):
        raise SessionError(f"{name} is true or false, not {quoted(wanted)}.")
    return wanted


def _address(wanted: Any) -> str | None:
    if not isinstance(wanted, str) or re.fullmatch(r"(tcp://[\w.\-\[\]:]{1,255}:\d{1,5})?", wanted) is None:
        given = quoted(wanted)
        raise SessionError(f"ranks is tcp://HOST:PORT, an address of this machine, or an empty text, not {given}.")
    return wanted or None


def _unfolded(wanted: Any) -> tuple[str, ...] | None:
    words = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) and ID.fullmatch(word) for word in words):
        raise SessionError(f"unfolded is a list of ids such as node-1, or all, none or default, not {quoted(wanted)}.")
    if "default" in words:
        return None
    chosen = tuple(dict.fromkeys(words[:_MOST_IDS])) or ("none",)
    return next(((word,) for word in ("all", "none") if word in chosen and len(chosen) > 1), chosen)


def _seconds(name: str, value: Any, limits: tuple[float, float]) -> float:
    least, most = limits
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SessionError(f"The {name} is a number of seconds, not {quoted(value)}.")
    if not least <= value <= most:
        raise SessionError(f"The {name} is {quoted(value)} s; it must lie between {least:g} and {most:g} s.")
    return float(value)


def _charts(wanted: Any) -> tuple[str, ...] | None:
    words = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise SessionError(f"The charts are a list of ids, or all, or default, not {quoted(wanted)}.")
    if list(words) == ["default"]:
        return None
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
    if not isinstance(wanted, str | os.PathLike):
        raise SessionError(f"record is true, false, or a folder for the recordings, not {quoted(wanted)}.")
    try:
        words = os.fsdecode(wanted)
        if not words:
            return {"record": True, "record_to": None}
        folder = expanded(words)
        written = os.fsencode(folder)
        if b"\0" in written or len(written) > _LONGEST_PATH:
            raise ValueError("it has a null character in it, or too many characters")
    except NoPlace as error:
        raise SessionError(f"There is no folder for the recordings: {error}") from None
    except (OSError, TypeError, ValueError, RuntimeError) as error:  # UnicodeError is a ValueError
        raise SessionError(f"{quoted(wanted)} cannot be a folder for the recordings: {line(str(error))}.") from None
    return {"record": True, "record_to": str(folder)}


def _price(wanted: Any, currency: str) -> dict[str, Any]:
    """Price, node price and currency; a number alone keeps the current currency. `2.50 € + 0.30`: with a node price."""
    is_text = isinstance(wanted, str) and len(wanted) <= _LONGEST_PRICE
    if is_text and not wanted.strip():
        return {"price": None, "node_price": None, "currency": ""}
    if is_text and wanted.rpartition("+")[0].strip():
        own, _, each = wanted.rpartition("+")
        here = _price(own, currency)
        there = _price(each, here["currency"])
        if there["currency"] != here["currency"]:
            raise SessionError(f"One price is in {here['currency']}, one in {there['currency']}; give both in one.")
        return {**here, "node_price": there["price"]}
    found = _PRICE.fullmatch(wanted.strip()) if is_text else None
    if found is not None and not (found["before"] and found["after"]):
        number = float(found["number"].replace(",", "."))
        currency = found["before"] or found["after"] or currency
        if printable(currency) != currency:
            raise SessionError(f"The currency {currency!r} has characters in it that cannot be shown: {EXAMPLES}")
    elif isinstance(wanted, int | float) and not isinstance(wanted, bool):
        number = wanted
    else:
        given = quoted(wanted)
        raise SessionError(f"The price of an hour is a number, perhaps with a currency, not {given}: {EXAMPLES}")
    if not 0 <= number <= _HIGHEST_PRICE:
        raise SessionError(f"The price of an hour is {quoted(number)}; it must lie between 0 and {_HIGHEST_PRICE:g}.")
    return {"price": float(number), "node_price": None, "currency": currency}


_CHANGES: dict[str, Callable[[Any, Settings], dict[str, Any]]] = {
    "interval": lambda value, _: {"interval": _seconds("interval", value, INTERVAL_S)},
    "history": lambda value, _: {"history": _seconds("history", value, HISTORY_S)},
    "charts": lambda value, _: {"chosen": _charts(value)},
    "record": lambda value, _: _record(value),
    "price": lambda value, old: _price(value, old.currency),
    "node_names": lambda value, _: {"node_names": _flag("node_names", value)},
    "attach": lambda value, _: {"attach": _flag("attach", value)},
    "ranks": lambda value, _: {"ranks": _address(value)},
    "log_to": lambda value, _: {"log_to": targets(value)},
    "unfolded": lambda value, _: {"unfolded": _unfolded(value)},
}
"""What each value that can be set changes, given the settings before."""
