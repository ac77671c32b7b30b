"""What this process may use of the machine, as the sampler found it: cores, a quota, a limit of memory."""

from __future__ import annotations

from ..store import Schema


def allowed_cores(schema: Schema) -> frozenset[int]:
    """The cores of the schema that this process may use; all of them where nothing is known of a limit."""
    limited = (schema.host.get("limits") or {}).get("cpus")
    return frozenset(schema.cpus if limited is None else set(schema.cpus).intersection(int(core) for core in limited))


def limits_note(schema: Schema) -> str | None:
    """What share of the cores that is, in words; None when it is all of them."""
    total, allowed = len(schema.cpus), len(allowed_cores(schema))
    quota = (schema.host.get("limits") or {}).get("cpu_quota")
    parts = [f"this process may use {allowed} of {total} cores"] if allowed < total else []
    if quota is not None:
        parts.append(f"quota {quota:g}" if parts else f"quota {quota:g} of {total} cores")
    return ", ".join(parts) or None


def memory_note(schema: Schema) -> str | None:
    """What 100 % of memory is, in words."""
    total = schema.host.get("memory_total")
    limit = (schema.host.get("limits") or {}).get("memory")
    parts = [f"host {float(total) / 1e9:,.1f} GB"] if total else []
    if limit is not None:
        parts.append(f"container limit {float(limit) / 1e9:,.1f} GB")
    return ", ".join(parts) or None


def usable_cores(schema: Schema) -> float:
    """How many cores this process may use at a time: those allowed, or its quota where that is less; 0: not known."""
    quota = (schema.host.get("limits") or {}).get("cpu_quota")
    allowed = float(max(1, len(allowed_cores(schema))))
    return allowed if quota is None else min(allowed, float(quota))
