"""What only a machine with an NVIDIA GPU can show, at one command: `make gpu`, or `python -m benchmarks.gpu`."""

from __future__ import annotations
