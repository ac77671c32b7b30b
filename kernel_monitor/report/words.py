"""Numbers and moments as a person reads them."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone


def zone(unix: float) -> timezone:
    """The local time zone of this machine at that moment, as a fixed distance from UTC."""
    return timezone(datetime.fromtimestamp(unix).astimezone().utcoffset() or timedelta(0))


def moment(unix: float, where: timezone) -> str:
    """`20 November 2026, 19:07 (UTC+01:00)`."""
    then = datetime.fromtimestamp(unix, where)
    return f"{then.day} {then:%B %Y, %H:%M} ({where.tzname(None)})"


def clock(unix: float, where: timezone) -> str:
    """`19:07:31.4`."""
    then = datetime.fromtimestamp(unix, where)
    return f"{then:%H:%M:%S}.{then.microsecond // 100_000}"


def duration(seconds: float) -> str:
    """`48 s`, `9 min 30 s` or `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: float) -> str:
    """Bytes in the units that memory is sold in: `64.0 GB`."""
    return f"{count / 1e9:,.1f} GB"


def number(value: float, unit: str = "") -> str:
    """Three significant digits where they matter, thousands separated; `-` for NaN."""
    if not math.isfinite(value):
        return "-"
    digits = 0 if abs(value) >= 100 or value == round(value) else 1 if abs(value) >= 10 or unit == "%" else 2
    return f"{value:,.{digits}f}"


def amount(value: float, unit: str) -> str:
    """A value with its unit: bytes and rates in kB, MB or GB, counts as they are."""
    if not math.isfinite(value):
        return "-"
    if unit in ("B", "B/s"):
        for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= factor:
                return f"{number(value / factor)} {prefix}{unit}"
        return f"{value:.0f} {unit}"
    return number(value, unit) if unit == "1" else f"{number(value, unit)} {unit}"


def ranges(numbers: list[int]) -> str:
    """`0–3, 8, 10–11`."""
    runs: list[list[int]] = []
    for one in numbers:
        if runs and one == runs[-1][-1] + 1:
            runs[-1][1:] = [one]
        else:
            runs.append([one])
    return ", ".join("–".join(str(edge) for edge in run) for run in runs)
