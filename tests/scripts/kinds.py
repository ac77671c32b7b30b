"""The data sets of the scripts, as text: what a stranger would write."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of data set. In the text there are `ROOT`, `FILES` and `resized` of `text.py`.

    Attributes:
        make: statements that assign `dataset`.
        definitions: what they need.
        sample: an expression of `batch`: images, the keys of its samples, what these saw of a changing value.
        change: statements before each epoch, whose number is `{epoch}`.
        inside: a statement after the third batch of each, whose number is `epoch`.
        options: for the DataLoader.
        sendable: whether plain torch can send it to workers that are not forked.
    """

    make: str
    definitions: str = ""
    sample: str = "batch[0], batch[1].tolist(), []"
    change: str = ""
    inside: str = ""
    options: str = "batch_size=4, shuffle=True"
    sendable: bool = True


OWN = """
class Photos(Dataset):
    def __init__(self, files, transform):
        self.files = files
        self.transform = transform{attributes}

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        {opened}
        return {returned}
"""
OPENED = 'image = Image.open(self.files[index]).convert("RGB")'


def own(returned: str = "self.transform(image), index", *, attributes: str = "", opened: str = OPENED) -> str:
    """The class of a data set with a `__getitem__` that opens a file and transforms it."""
    return OWN.format(attributes=attributes and f"\n        {attributes}", opened=opened, returned=returned)


NAMES = """
class Photos(Dataset):
    def __init__(self, files, transform):
        self.files = {file.rsplit("/", 1)[-1]: file for file in files}
        self.transform = transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, name):
        image = Image.open(self.files[name]).convert("RGB")
        return self.transform(image), name


class Shuffled(Sampler):
    def __init__(self, names):
        self.names = list(names)

    def __len__(self):
        return len(self.names)

    def __iter__(self):
        for number in torch.randperm(len(self.names)).tolist():
            yield self.names[number]
"""

SIZES = """
class Photos(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, key):
        index, size = key
        image = Image.open(self.files[index]).convert("RGB")
        return resized(size)(image), index, size


class SeveralSizes(Sampler):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return (self.count + 3) // 4

    def __iter__(self):
        order = torch.randperm(self.count).tolist()
        for start in range(0, self.count, 4):
            size = 32 if start % 8 else 48
            yield [(index, size) for index in order[start : start + 4]]
"""

HUGGING_FACE = """
import datasets


def transformed(rows):
    return {"image": [resized(32)(image.convert("RGB")) for image in rows["image"]], "index": rows["index"]}


def images():
    rows = datasets.Dataset.from_dict({"image": FILES, "index": list(range(len(FILES)))})
    return rows.cast_column("image", datasets.Image())
"""

MONAI = """
import monai.data
from monai.transforms import Compose, EnsureChannelFirstd, LoadImaged, Resized, ScaleIntensityRanged

CHAIN = Compose([
    LoadImaged("image"), EnsureChannelFirstd("image"), Resized("image", (32, 32)),
    ScaleIntensityRanged("image", 0, 255, 0.0, 1.0),
])
ITEMS = [{"image": file, "index": index} for index, file in enumerate(FILES)]
"""
DICTS = 'batch["image"], batch["index"].tolist(), []'

LMDB = """
import io

import lmdb


class Photos(Dataset):
    def __init__(self, path, count, transform):
        self.path = path
        self.count = count
        self.transform = transform
        self.env = {early}

    def __len__(self):
        return self.count

    def open(self):
        return lmdb.open(self.path, readonly=True, lock=False, readahead=False, meminit=False)

    def __getitem__(self, index):
        if self.env is None:
            self.env = self.open()
        with self.env.begin() as transaction:
            data = transaction.get(b"%d" % index)
        return self.transform(Image.open(io.BytesIO(data)).convert("RGB")), index
"""
NESTED = """

import gc

gc.disable()  # as some do for speed


class Named(Dataset):
    def __init__(self, path, count):
        self.inner = Photos(path, count, resized(32))

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return (*self.inner[index], "train")
"""
LMDB_MADE = 'dataset = Photos(ROOT + "/lmdb", len(FILES), resized(32))'

MADE = "dataset = Photos(FILES, resized(32))"
VALUES = "batch[0], batch[1].tolist(), batch[2].tolist()"

KINDS = {
    "folder": Kind('dataset = ImageFolder(ROOT + "/images", resized(32))'),
    "own": Kind(MADE, own()),
    "dicts": Kind(MADE, own('{"image": self.transform(image), "index": index, "name": self.files[index]}'), DICTS),
    "names": Kind(MADE, NAMES, "batch[0], list(batch[1]), []", options="batch_size=4, sampler=Shuffled(dataset.files)"),
    "sizes": Kind("dataset = Photos(FILES)", SIZES, VALUES, options="batch_sampler=SeveralSizes(len(dataset))"),
    "hf-with": Kind("dataset = images().with_transform(transformed)", HUGGING_FACE, DICTS),
    "hf-set": Kind("dataset = images()\ndataset.set_transform(transformed)", HUGGING_FACE, DICTS),
    "monai": Kind("dataset = monai.data.Dataset(ITEMS, CHAIN)", MONAI, DICTS),
    "monai-cache": Kind("dataset = monai.data.CacheDataset(ITEMS, CHAIN, num_workers=1, progress=False)", MONAI, DICTS),
    "lmdb-lazy": Kind(LMDB_MADE, LMDB.format(early="None")),
    "lmdb-early": Kind(LMDB_MADE, LMDB.format(early="self.open()"), sendable=False),
    "lmdb-nested": Kind(
        LMDB_MADE.replace("Photos", "Named", 1).replace("FILES), resized(32)", "FILES)"),
        LMDB.format(early="None") + NESTED,
        "batch[0], batch[1].tolist(), []",
    ),
    "counter": Kind(
        MADE,
        "import multiprocessing\n\n"
        + own(
            "self.transform(image), index, self.epoch.value", attributes='self.epoch = multiprocessing.Value("i", 0)'
        ),
        VALUES,
        "dataset.epoch.value = {epoch}",
    ),
    "attribute": Kind(
        MADE,
        own("self.transform(image), index, self.level", attributes="self.level = 0"),
        VALUES,
        "dataset.level = {epoch}",
    ),
    "transform": Kind(MADE, own(), change="dataset.transform = resized((32, 48, 64, 32)[{epoch}])"),
    "attribute-inside": Kind(
        MADE,
        own("self.transform(image), index, self.level", attributes="self.level = 0"),
        VALUES,
        inside="dataset.level = epoch + 1",
    ),
    "transform-inside": Kind(MADE, own(), inside="dataset.transform = resized((48, 64, 32, 48)[epoch])"),
    "lock": Kind(
        MADE,
        "import threading\n\n"
        + own(attributes="self.lock = threading.Lock()", opened=f"with self.lock:\n            {OPENED}"),
        sendable=False,
    ),
    "file": Kind(
        'dataset = Photos(json.load(open(ROOT + "/places.json")), resized(32))',
        "import io\nimport os\n\n"
        + own(
            attributes='self.archive = open(ROOT + "/archive", "rb")',
            opened="place, size = self.files[index]\n"
            "        data = os.pread(self.archive.fileno(), size, place)\n"
            '        image = Image.open(io.BytesIO(data)).convert("RGB")',
        ),
        sendable=False,
    ),
}
FRAMEWORKS = ("hf-with", "hf-set", "monai", "monai-cache")
"""Which import what takes seconds."""
