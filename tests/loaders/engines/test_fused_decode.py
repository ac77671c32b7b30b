"""Decoding only what a crop keeps: the same pixels, and off at a word while the loop runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack
from torchvision import transforms as v1

from kernel_monitor.loaders.data.file_check import FileTable
from kernel_monitor.loaders.engines import dali_graph
from kernel_monitor.loaders.transforms.params import sample_keys
from kernel_monitor.loaders.transforms.translate import translate

from ..conftest import Make, deliver, settle


@pytest.mark.parametrize("floating", [False, True])
def test_a_fused_decode_gives_the_same_pixels(folder: Path, floating: bool) -> None:
    tail = [v1.ToTensor()] if floating else [v1.PILToTensor()]
    program = translate(v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), *tail]))
    paths = sorted(folder.glob("*/*.jpg"))[:32]
    table = FileTable(32)
    facts = [table.look(number, str(path)) for number, path in enumerate(paths)]
    rows = dali_graph.Rows(
        sample_keys(1, 2, range(32), [0] * 32),
        np.arange(32),
        np.array([fact.height for fact in facts]),
        np.array([fact.width for fact in facts]),
    )
    found = []
    for fused in (True, False):
        for encoded in (False, True):
            work = dali_graph.Translated(program, fused=fused)
            pipeline = work.build(batch_size=32, threads=2, device=None, encoded=encoded)
            fed = [np.frombuffer(path.read_bytes() if encoded else bytes(path), np.uint8) for path in paths]
            pipeline.feed_input("encoded" if encoded else "name", fed)
            for name, values in work.arrays(rows).items():
                pipeline.feed_input(name, values)
            found.append(from_dlpack(pipeline.run()[0].as_tensor()).double() * (255 if floating else 1))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[3])
    assert (found[0] - found[2]).abs().mean() < 0.05


def test_fused_decode_can_be_switched_off_while_the_loop_runs(make: Make) -> None:
    loader = make(num_workers=0)
    expected = deliver(loader)[0]
    loader.set_epoch(0)
    assert loader.fused_decode is None
    assert (loader.pool.setting.fused(None), loader.pool.setting.fused(0)) == (True, False)  # on the CPU, on a GPU
    loader.switch("dali-cpu")
    settle(loader)
    first = loader.pool["dali-cpu"].engine
    images = []
    for number, (batch, _) in enumerate(loader):
        images.append(batch)
        if number == 3:
            loader.fused_decode = False
            deadline = time.monotonic() + 60
            while loader.pool["dali-cpu"].engine is first:
                assert time.monotonic() < deadline
                time.sleep(0.001)
    assert not loader.fused_decode
    assert loader.decoded() == {"dali-cpu": 243}
    assert ((torch.cat(images) - expected).abs().mean(dim=(1, 2, 3)) * 255 * 0.226).max() < 1.5


def test_parity_compares_the_decode_that_the_engine_uses(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    real = dali_graph._decoded

    def noted(*args: Any, region: bool) -> Any:
        decoded.append(region)
        return real(*args, region=region)

    monkeypatch.setattr(dali_graph, "_decoded", noted)
    loader = make(num_workers=0)
    for fused in (True, False):
        loader.fused_decode = fused
        decoded.clear()
        found = loader.parity(8)
        assert found.samples == 8
        assert found.mean <= 0.5
        assert set(decoded) == {fused}
