"""The loader as a Python file: it runs without this package, and its batches are those of torch's DataLoader."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from kernel_monitor import switchable
from kernel_monitor.control import Control
from kernel_monitor.errors import MonitorError
from kernel_monitor.ipython.magics import MonitorMagics
from kernel_monitor.runtime import Monitor

from ..wire.schema import validate
from .conftest import augmented, make_folder
from .photos import Photos

DATA_SETS = '''
from PIL import Image
import torch
from torch.utils.data import Dataset
from torchvision import transforms, tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

NORMALIZE = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Rows(Dataset):
    """Its samples are dictionaries."""

    def __init__(self, root, transform):
        self.root, self.transform = root, transform
        folder = ImageFolder(root)
        self.rows = [(path[len(root) + 1 : -4], folder.classes[label]) for path, label in folder.samples]
        self.numbers = folder.class_to_idx

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        name, label = self.rows[index]
        image = Image.open(f"{self.root}/{name}.jpg").convert("RGB")
        return {"image": self.transform(image), "label": self.numbers[label], "name": name}


class Masked(Dataset):
    """Segmentation: one transform of image and mask."""

    def __init__(self, root, masks):
        self.root, self.masks = root, masks
        self.ids = [path[len(root) + 1 : -4] for path, _ in ImageFolder(root).samples]
        kinds = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
        self.transforms = v2.Compose(
            [
                v2.RandomResizedCrop(48), v2.RandomCrop(32), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(0.3),
                v2.ToDtype(kinds, scale=True), v2.Normalize(*NORMALIZE),
            ]
        )

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        image = tv_tensors.Image(Image.open(f"{self.root}/{self.ids[index]}.jpg").convert("RGB"))
        mask = tv_tensors.Mask(Image.open(f"{self.masks}/{self.ids[index]}.png"))
        return self.transforms(image, mask)


def made(root, masks):
    """Return each data set by the name of its file."""
    usual = [transforms.ToTensor(), transforms.Normalize(*NORMALIZE)]
    crop = [transforms.Resize(50), transforms.CenterCrop(40), *usual]
    moved = [transforms.Resize((60, 60)), transforms.RandomCrop(40, padding=4), transforms.RandomHorizontalFlip(0.8)]
    random = [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), *usual]
    return {
        "folder": ImageFolder(root, transforms.Compose(random)),
        "fixed": ImageFolder(root, transforms.Compose(crop)),
        "rows": Rows(root, transforms.Compose([*moved, *usual])),
        "masked": Masked(root, masks),
    }
'''

ALONE = """
import importlib, sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "kernel_monitor":
            raise ImportError("blocked")

sys.meta_path.insert(0, Blocked())
try:
    import kernel_monitor
except ImportError:
    pass
else:
    raise SystemExit("it is not blocked")
sys.path.insert(0, sys.argv[1])

import torch
from torch.utils.data import DataLoader, default_collate
from own_data import made

def parts(batch):
    values = list(batch.values()) if isinstance(batch, dict) else list(batch)
    return list(batch) if isinstance(batch, dict) else type(batch), values

for name, dataset in made(*sys.argv[2:]).items():
    shuffle = name != "fixed"
    loader = importlib.import_module("written_" + name).make_loader(dataset)
    for epoch in range(2):
        torch.manual_seed(epoch)
        expected = list(DataLoader(dataset, batch_size=5, shuffle=shuffle))
        torch.manual_seed(epoch)
        batches = list(loader)
        assert len(batches) == len(loader) == len(expected) == 3, name
        for one, other in zip(expected, batches):
            (keys, values), (others, found) = parts(one), parts(other)
            assert keys == others, name
            difference = (values[0] - found[0]).abs().mean().item() * 255 * 0.226
            assert values[0].shape == found[0].shape and values[0].dtype == found[0].dtype, name
            assert difference < 1.5, (name, difference)
            for value, made_value in zip(values[1:], found[1:], strict=True):
                same = torch.equal(value, made_value) if isinstance(value, torch.Tensor) else value == made_value
                assert same and type(value) is type(made_value), name
    next(iter(loader))  # left early
    assert len(list(loader)) == 3, name
    print(name, "equal")
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("code")
    root, masks = make_folder(folder / "photos", 12), folder / "masks"
    random = np.random.default_rng(0)
    for path in root.rglob("*.jpg"):
        with Image.open(path) as image:
            width, height = image.size
        mask = masks / path.relative_to(root).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 9, (height, width), dtype=np.uint8)).save(mask)
    (folder / "own_data.py").write_text(DATA_SETS)
    sys.path.insert(0, str(folder))
    try:
        yield folder, importlib.import_module("own_data").made(str(root), str(masks))
    finally:
        sys.path.remove(str(folder))
        del sys.modules["own_data"]


def test_the_file_runs_without_this_package(data: tuple[Path, dict[str, Any]]) -> None:
    folder, datasets = data
    for name, dataset in datasets.items():
        loader = switchable(DataLoader(dataset, batch_size=5, shuffle=name != "fixed"))
        before = torch.get_rng_state()
        text = loader.code()
        assert torch.equal(torch.get_rng_state(), before)
        assert "images differ by" in text
        (folder / f"written_{name}.py").write_text(text)
        loader.release()
    arguments = [str(folder), str(folder / "photos"), str(folder / "masks")]
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, *arguments], cwd="/", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [word for name in datasets for word in (name, "equal")]
    ruff = shutil.which("ruff") or str(Path(sys.executable).with_name("ruff"))
    files = [str(folder / f"written_{name}.py") for name in datasets]
    for command in (["format", "--check"], ["check"]):
        checked = subprocess.run([ruff, *command, "--isolated", *files], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr


class Unlisted(Photos):
    """It computes its paths."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(sorted(self.paths)[::-1][index]).convert("RGB")), index


class Drawing(Photos):
    """It draws a number of its own before its transform does."""

    def __getitem__(self, index: int) -> Any:
        torch.rand(1)
        return super().__getitem__(index)


def test_other_crops_are_refused(data: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = data
    loader = switchable(DataLoader(Drawing(sorted((folder / "photos").rglob("*.jpg")), augmented()), batch_size=5))
    with pytest.raises(MonitorError, match="delivers other samples than Drawing does"):
        loader.code()
    loader.release()


def test_what_has_no_code_form_is_named(data: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = data
    paths = sorted((folder / "photos").rglob("*.jpg"))
    jitter = v1.Compose([v1.RandomResizedCrop(32), v1.ColorJitter(0.4), v1.ToTensor()])
    root = str(folder / "photos")
    gated = v1.Compose([v1.Resize((8, 8)), v1.RandomApply([v1.RandomHorizontalFlip()], 0.5), v1.ToTensor()])
    idle = v1.Compose([v1.ColorJitter(0), v1.RandomResizedCrop(8), v1.ToTensor()])
    cases = {
        "ColorJitter: its random": ImageFolder(root, jitter),
        "RandomApply: which of its transforms": ImageFolder(root, gated),
        "ColorJitter: it changes nothing": ImageFolder(root, idle),
        "Unlisted holds the image file": Unlisted(paths, augmented()),
        "does not do.*RandomPosterize": Photos(
            paths, v1.Compose([v1.Resize((8, 8)), v1.RandomPosterize(4), v1.ToTensor()])
        ),
    }
    for words, dataset in cases.items():
        loader = switchable(DataLoader(dataset, batch_size=5))
        with pytest.raises(MonitorError, match=words):
            loader.code(compare=False)


def test_command_and_request(
    data: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, datasets = data
    monitor = Monitor()
    loader = switchable(DataLoader(datasets["folder"], batch_size=5), name="training")
    text = monitor.code("training", compare=False)
    magics: Any = MonitorMagics(None, monitor)  # type: ignore[arg-type]
    magics.monitor(f"code --loader training {tmp_path / 'loader.py'}")
    assert "wrote" in capsys.readouterr().out
    written = (tmp_path / "loader.py").read_text()
    assert "images differ by" in written
    assert written.partition("\nfrom collections")[2] == text.partition("\nfrom collections")[2] != ""
    reply: dict[str, Any] = dict(Control(monitor)._slow["code"]({"loader": "training"})[0])
    validate(reply, "CodeReply")
    assert reply["code"] == text
    assert "were not compared" in text
    loader.release()
