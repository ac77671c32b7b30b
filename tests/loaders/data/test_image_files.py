"""A data set of one's own that says which file each sample is, or gives its bytes."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset

from kernel_monitor.errors import NotSwitchable, SampleError
from kernel_monitor.loaders import ImageFiles, switchable
from kernel_monitor.loaders.data.file_source import FileSource

from ..conftest import settle
from .delivered import FIXED, as_listed, described, same, samples
from .torchvision_layouts import image


class Own(Dataset[Any]):
    """Of a user's: paths of several kinds, or encoded bytes."""

    def __init__(self, paths: list[Any], transform: Any = None, target_transform: Any = None) -> None:
        self.paths = paths
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self) -> int:
        return len(self.paths)

    def image_file(self, index: int) -> tuple[Any, Any]:
        return self.paths[index], index * 10

    def __getitem__(self, index: int) -> Any:
        file, target = self.image_file(index)
        one: Any = Image.open(io.BytesIO(file) if isinstance(file, bytes | bytearray | memoryview) else file)
        one = one.convert("RGB")
        if self.transform is not None:
            one = self.transform(one)
        return one, target if self.target_transform is None else self.target_transform(target)


class Like(os.PathLike[str]):
    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [image(tmp_path / f"{n}.jpg", "L" if n == 3 else "RGB") for n in range(5)]


KINDS: dict[str, Callable[[Path], Any]] = {
    "str": str,
    "Path": Path,
    "PathLike": Like,
    "bytes": Path.read_bytes,
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_users_protocol(files: list[Path], kind: str, workers: int) -> None:
    given = [KINDS[kind](path) for path in files]
    dataset: ImageFiles = Own(given, described, as_listed)
    delivered, _ = samples(dataset, num_workers=workers)
    assert all(map(same, delivered, map(Own(given, described, as_listed).__getitem__, range(5))))
    source = FileSource(Own(given))
    assert source.encoded == (kind in ("bytes", "bytearray", "memoryview"))
    assert source.locate(2).path == ("Own[2]" if source.encoded else str(files[2]))
    assert source.locate(-1).number == 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_users_protocol_on_dali(files: list[Path], kind: str) -> None:
    dataset = Own([KINDS[kind](path) for path in files], FIXED, as_listed)
    delivered, decoders = samples(Subset(dataset, [4, 3, 0, 0]), "dali-cpu")
    assert decoders == ["dali-cpu"] * 4
    for (one, target), index in zip(delivered, (4, 3, 0, 0), strict=True):
        plain, wanted = dataset[index]
        assert target == wanted
        assert (one - plain).abs().mean() * 255 < 0.5


def test_the_protocol_needs_neither_getitem_nor_a_target_transform(files: list[Path]) -> None:
    class Bare:
        transform = None

        def __len__(self) -> int:
            return len(files)

        def image_file(self, index: int) -> tuple[Path, int]:
            return files[index], index

    loader = switchable(DataLoader(Bare(), batch_size=5, collate_fn=list))  # type: ignore[arg-type]
    (batch,) = loader
    assert [target for _, target in batch] == list(range(5))


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_bytes_are_named_by_data_set_and_place(files: list[Path], workers: int) -> None:
    dataset = Own([files[0].read_bytes(), b"no image"], FIXED)
    texts = []
    for backend in ("torchvision", "dali-cpu"):
        loader = switchable(DataLoader(Subset(dataset, [0, 1]), num_workers=workers))
        loader.switch(backend)
        if workers == 0:
            settle(loader)
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(SampleError) as caught:
            next(iterator)
        loader.release()
        assert caught.value.index == 1
        assert caught.value.path == "Own[1]"
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert "sample 1, Own[1]: UnidentifiedImageError: cannot identify image file Own[1]" in texts[0]


def test_what_image_file_gives_wrongly_or_raises_is_said(files: list[Path]) -> None:
    class Wrong(Own):
        def image_file(self, index: int) -> Any:
            return np.zeros(3), self.paths[index]

    class Raises(Own):
        def image_file(self, index: int) -> Any:
            if index == 2:
                raise KeyError("no row 2")
            return super().image_file(index)

    with pytest.raises(TypeError, match="gave ndarray for an image file; it must give a path or bytes"):
        next(iter(switchable(DataLoader(Wrong(files)))))
    for backend in ("torchvision", "dali-cpu"):
        loader = switchable(DataLoader(Raises(files, FIXED)))
        loader.switch(backend)
        settle(loader)
        iterator = iter(loader)
        assert [int(next(iterator)[1]) for _ in range(2)] == [0, 10]
        with pytest.raises(KeyError, match="no row 2"):
            next(iterator)
        assert [int(target) for _, target in iterator] == [30, 40]
        loader.release()


def test_a_protocol_without_transform_is_told_so(files: list[Path]) -> None:
    class Forgot:
        def __len__(self) -> int:
            return 1

        def image_file(self, _: int) -> tuple[Path, int]:
            return files[0], 0

    with pytest.raises(NotSwitchable, match="Forgot has image_file but no attribute transform; set"):
        switchable(DataLoader(Forgot()))  # type: ignore[arg-type]


def test_relative_paths_survive_a_change_of_folder(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files[0].parent)
    dataset = Own([path.name for path in files], FIXED)
    plain = [dataset[index][0] for index in range(5)]
    loaders = [switchable(DataLoader(dataset, batch_size=5)) for _ in range(2)]
    loaders[1].switch("dali-cpu")
    monkeypatch.chdir("/")
    for loader in loaders:
        settle(loader)
        (batch,) = loader
        assert (batch[0] - torch.stack(plain)).abs().mean() * 255 < 0.5
        loader.release()
