"""What a machine with a GPU but no network lacks, packed into parts: `make gpu-kit`."""

from __future__ import annotations
