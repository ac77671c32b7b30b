"""What a kernel has ready when `%monitor` is called: nobody waits for an import."""

from __future__ import annotations

import pytest

from ..waiting import until
from .kernels import KERNELS, kernel

LOADED = "'kernel_monitor.widgets' in __import__('sys').modules"


@pytest.mark.parametrize("name", KERNELS)
def test_the_widget_is_imported_beside_what_a_person_runs(name: str) -> None:
    with kernel(name) as page:
        page.run("%load_ext kernel_monitor")
        until(lambda: page.value(LOADED))
        assert not page.value("'bokeh' in __import__('sys').modules")
