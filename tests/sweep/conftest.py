"""A small demo set, and the command as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel_monitor.demo import demo_data

IMAGES = 48
QUICK = ("--short", "--batch", "4", "--workers", "1", "--seconds", "0.4", "--passes", "2")
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images whose own name may be shown, in one whose name may not."""
    return demo_data(
        tmp_path_factory.mktemp("a client's folder") / "pictures", images=IMAGES, classes=3, progress=False
    )


@pytest.fixture(scope="session")
def start(pictures: Path) -> Start:
    """Starts `kernel-monitor sweep sagemaker-dali` on these images, in a process group of its own."""

    def started(output: Path, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "kernel_monitor", "sweep", "sagemaker-dali", *QUICK]
        return subprocess.Popen(
            [*command, "--data", str(pictures), "--output", str(output), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"OMP_WAIT_POLICY": "passive"},
        )

    return started
