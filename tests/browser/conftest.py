from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from .lab import Lab, Server, chromium, server

expect.set_options(timeout=45_000)  # a busy machine takes longer than Playwright's five seconds


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def kernels(lab_server: Server) -> Iterator[None]:
    """A module's kernels end with it."""
    yield
    lab_server.end_kernels()


@pytest.fixture(scope="module")
def loaded(browser: Browser, lab_server: Server) -> Iterator[Lab]:
    """One page for the tests of a module: loading JupyterLab takes longer than most of them."""
    with Lab(browser, lab_server) as lab:
        yield lab


@pytest.fixture
def lab(loaded: Lab) -> Iterator[Lab]:
    """The module's page, with nothing open in it."""
    yield loaded
    loaded.clear()


@pytest.fixture
def new_lab(browser: Browser, lab_server: Server) -> Iterator[Lab]:
    """A page of the test's own, for what is about a page's load or depends on what was shown in it before."""
    with Lab(browser, lab_server) as lab:
        yield lab
    lab_server.end_kernels()


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of JPEGs in which every image is a class of its own, so that a label is an index."""
    import numpy as np
    from PIL import Image

    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(5)
    for index in range(1280):
        folder = root / f"{index:04d}"
        folder.mkdir()
        small = rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)
        size = (int(rng.integers(180, 260)), int(rng.integers(160, 220)))
        Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(folder / "image.jpg", quality=90)
    return root
