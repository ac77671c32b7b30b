"""Moments and lengths of time as people say them."""

from __future__ import annotations

import time


def moment(unix: float) -> str:
    """`14:02`, with the date where that is not today."""
    at = time.localtime(unix)
    return time.strftime("%H:%M" if at[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M", at)


def span(seconds: float) -> str:
    """`42 s`, `31 min`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
