"""Numbers and moments as a person reads them; the filters of the report's templates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from ..analysis.changes import figure

BEFORE = "$£¥"  # currencies of one sign that stand before the figure where it is written in English
_BYTES = ("B", "B/s")


def zone(unix: float) -> timezone:
    """Return the local time zone of this machine at that moment, as a fixed distance from UTC."""
    return timezone(datetime.fromtimestamp(unix).astimezone().utcoffset() or timedelta(0))


def moment(unix: float, where: timezone) -> str:
    """Format a moment: `20 November 2026, 19:07 (UTC+01:00)`."""
    then = datetime.fromtimestamp(unix, where)
    return f"{then.day} {then:%B %Y, %H:%M} ({where.tzname(None)})"


def clock(unix: float, where: timezone) -> str:
    """Format a time of day: `19:07:31.4`."""
    then = datetime.fromtimestamp(unix, where)
    return f"{then:%H:%M:%S}.{then.microsecond // 100_000}"


def is_known(value: Any) -> bool:
    """Return whether it is a number, and neither NaN nor infinite."""
    return isinstance(value, int | float) and math.isfinite(value)


def duration(seconds: float) -> str:
    """Format a duration: `48 s`, `9 min 30 s` or `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def number(value: Any, unit: str = "") -> str:
    """Format a number: three significant digits where they matter, thousands separated; `-` where it is not known."""
    if not is_known(value):
        return "-"
    digits = 0 if abs(value) >= 100 or value == round(value) else 1 if abs(value) >= 10 or unit == "%" else 2
    return f"{value:,.{digits}f}"


def amount(value: float, unit: str) -> str:
    """Return a value with its unit: bytes and rates in kB, MB or GB, counts as they are."""
    if not is_known(value):
        return "-"
    if unit in _BYTES:
        for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= factor:
                return f"{number(value / factor)} {prefix}{unit}"
        return f"{value:.0f} {unit}"
    return f"{value:,.0f}" if unit == "1" else f"{number(value, unit)} {unit}"


def spread(value: float, unit: str) -> str:
    """Return a figure whose unit stands with its name, but for bytes, which bring it with them."""
    return amount(value, unit) if unit in _BYTES else number(value, unit)


def size(count: float) -> str:
    """Format a number of bytes in the units that memory is sold in: `64.0 GB`."""
    return f"{count / 1e9:,.1f} GB"


def ms(value: Any) -> str:
    """Format milliseconds: `60 ms`; `-` where they are not known."""
    return f"{number(value)} ms" if is_known(value) else "-"


def percent(share: Any, digits: int = 0) -> str:
    """Format a share: `82 %` for 0.82; `-` where it is not known."""
    return f"{100 * share:.{digits}f} %".replace("-", "−") if is_known(share) else "-"


def count(value: Any, missing: str = "-") -> str:
    """Format a count: `1,280`; `missing` where it is not known."""
    return f"{value:,}" if isinstance(value, int | float) else missing


def plural(value: int, name: str) -> str:
    """Format a count of things: `1 epoch`, `1,280 epochs`."""
    return f"{value:,} {name if value == 1 else name + 's'}"


def settings(knobs: Mapping[str, Any]) -> str:
    """Format knobs: `workers 4, prefetch 2`; `-` where none is set."""
    return ", ".join(f"{name} {value}" for name, value in knobs.items() if value is not None) or "-"


def money(value: float, currency: str) -> str:
    """Format whole units of a currency with three significant digits: `$0.00201`, `2.50 €`; `-` where not known."""
    if not math.isfinite(value):
        return "-"
    size = float(f"{abs(value):.3g}")  # rounded first: 0.0009999 is 0.00100
    digits = 2 if size == 0 or size >= 1 else min(2 - math.floor(math.log10(size)), 9)
    figure = f"{value:,.{digits}f}"
    sign = currency.strip()
    return f"{sign}{figure}" if sign and sign in BEFORE else f"{figure} {sign}".strip()


def ranges(numbers: list[int]) -> str:
    """Format numbers as ranges: `0–3, 8, 10–11`."""
    runs: list[list[int]] = []
    for value in numbers:
        if runs and value == runs[-1][-1] + 1:
            runs[-1][1:] = [value]
        else:
            runs.append([value])
    return ", ".join("–".join(str(edge) for edge in run) for run in runs)


FILTERS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (amount, count, duration, figure, is_known, moment, money, ms, number, percent, plural, settings,
                     size, spread)
}  # fmt: skip
