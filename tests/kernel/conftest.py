from __future__ import annotations

from collections.abc import Iterator

import pytest

from .kernels import KERNELS, Page, kernel


@pytest.fixture(params=KERNELS)
def page(request: pytest.FixtureRequest) -> Iterator[Page]:
    """A kernel of each supported ipykernel, with the extension loaded and the monitor started and measuring."""
    with kernel(request.param) as page:
        page.run("%load_ext kernel_monitor\n%monitor start")
        page.rows()
        yield page
