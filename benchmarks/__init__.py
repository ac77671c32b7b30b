"""Benchmarks, which print the figures that the README quotes: `python -m benchmarks.<name>`."""

from __future__ import annotations
