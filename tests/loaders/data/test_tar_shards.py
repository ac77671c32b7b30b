"""Tar shards: the same samples as webdataset reads, at any place; their indexes, and what becomes of bad shards."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler
from torchvision import transforms as v1

from kernel_monitor import TarShards, switchable
from kernel_monitor.errors import MonitorError, SampleError
from kernel_monitor.loaders.data import tar_index, tar_shards
from kernel_monitor.loaders.data.file_source import FileSource

from ..attached_loops import attaching, click, engines_of, wait_until_ready
from ..conftest import on_both, switch_to
from .datasets import equal
from .datasets.folder import photos
from .test_own_datasets import near

Member = tuple[str, bytes]
CHAIN = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()])
RAW = dict.fromkeys([*tar_shards.IMAGES, *tar_shards.DECODERS])
PER_SHARD = 6


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_MONITOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shards"


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that are scanned from here on."""
    found: list[str] = []
    original = tar_index.scan

    def scan(path: str, *others: Any) -> Any:
        found.append(Path(path).name)
        return original(path, *others)

    monkeypatch.setattr(tar_index, "scan", scan)
    return found


def pack(path: Path, members: Sequence[Member | tarfile.TarInfo], **options: Any) -> Path:
    with tarfile.open(path, "w", **options) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            archive.addfile(info, io.BytesIO(member[1]))
    return path


def other(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "elsewhere"
    return info


def png(seed: int, mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "png")
    return file.getvalue()


def npy(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.fixture
def shards(root: Path, tmp_path: Path) -> str:
    """Four shards of photos, with their number as class and a text of JSON."""
    files = photos(root)
    folder = tmp_path / "shards"
    folder.mkdir()
    for first in range(0, len(files), PER_SHARD):
        members = []
        for number, file in enumerate(files[first : first + PER_SHARD], first):
            members += [
                (f"{number:06d}.jpg", file.read_bytes()),
                (f"{number:06d}.cls", b"%d" % number),
                (f"{number:06d}.json", json.dumps({"file": file.name}).encode()),
            ]
        pack(folder / f"train-{first // PER_SHARD:04d}.tar", members)
    return str(folder / "train-{0000..0003}.tar")


PLAIN = [("a.jpg", png(0)), ("a.cls", b"3\n"), ("b.jpg", png(1)), ("b.cls", b"4")]
ODD: dict[str, list[Member | tarfile.TarInfo]] = {
    "plain": [*PLAIN],
    "folders": [
        other("x", tarfile.DIRTYPE),
        ("x/1.jpg", b"1"),
        ("x/1.txt", b"2"),
        ("x.y/1.txt", b"3"),
        ("y/1.txt", b""),
    ],
    "dots in names": [
        ("1.left.jpg", b"l"),
        ("1.right.jpg", b"r"),
        ("1.seg.png.gz", b"s"),
        ("2.0.jpg", b"n"),
        ("3.", b"e"),
    ],
    "capitals": [("A.JPG", b"1"), ("A.Txt", b"2"), ("c.jpg", b"3")],
    "meta": [
        ("__info__.json", b"{}"),
        ("__m__/1.txt", b"m"),
        ("1.txt", b"1"),
        ("x/__m__/1.txt", b"m"),
        ("__a.txt", b"a"),
    ],
    "no suffix": [("README", b"r"), ("1.txt", b"1"), (".hidden", b"h"), ("x/.hidden.txt", b"h"), ("x/README", b"r")],
    "apart": [("1.txt", b"1"), ("2.txt", b"2"), ("1.jpg", b"3")],
    "links": [
        ("1.txt", b"1"),
        other("1.jpg", tarfile.SYMTYPE),
        other("1.png", tarfile.LNKTYPE),
        other("2.f", tarfile.FIFOTYPE),
    ],
    "long names": [(f"{'n' * 300}/{k}{'m' * 200}.{'s' * 40}.txt", b"%d" % k) for k in range(3)],
    "no ASCII": [("größe/日本.txt", b"1"), (os.fsdecode(b"\xff\xfe.txt"), b"2")],
    "block sizes": [(f"{size}.bin", bytes([size % 251]) * size) for size in (0, 1, 511, 512, 513, 70_000)],
    "nothing": [],
}


def streamed(*paths: Path) -> list[dict[str, Any]]:
    """The samples as webdataset's own functions read them from a stream; the files are closed."""
    iterators = pytest.importorskip("webdataset.tariterators")
    with ExitStack() as stack:
        sources = [{"url": str(path), "stream": stack.enter_context(path.open("rb"))} for path in paths]
        return list(iterators.group_by_keys(iterators.tar_file_expander(sources)))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
@pytest.mark.parametrize("name", ODD)
def test_the_samples_are_those_that_webdataset_reads(name: str, form: int, tmp_path: Path) -> None:
    paths = [pack(tmp_path / f"{number}.tar", [*ODD[name], *PLAIN[: number + 2]], format=form) for number in range(2)]
    expected = streamed(*paths)
    found = list(TarShards(paths, decoders=RAW | {"seg.png.gz": None}))
    assert [list(sample.items()) for sample in found] == [list(sample.items()) for sample in expected]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.text("ab./_J", min_size=1, max_size=9), st.binary(max_size=600)), max_size=12))
def test_any_names(tmp_path: Path, members: list[Member]) -> None:
    path = pack(tmp_path / "any.tar", [(name.strip("/") or "a", content) for name, content in members])
    try:
        expected = streamed(path)
    except ValueError:  # a duplicate
        with pytest.raises(MonitorError, match="two members"):
            tar_index.scan(str(path))
        return
    index = tar_shards._Index([tar_index.scan(str(path))])
    found = [
        {
            "__key__": index.key(place),
            "__url__": index.shard(place),
            **{suffix: index.read(place, member, "") for suffix, member in index.members(place)},
        }
        for place in range(len(index))
    ]
    assert found == expected


def test_the_members_are_decoded_as_webdataset_decodes_them(tmp_path: Path) -> None:
    autodecode, filters = (pytest.importorskip(f"webdataset.{name}") for name in ("autodecode", "filters"))
    arrays = io.BytesIO()
    np.savez(arrays, x=np.arange(3), y=np.ones(2))
    path = pack(
        tmp_path / "all.tar",
        [
            ("1.png", png(0, "P")),
            ("1.left.jpeg", png(1, "L")),
            ("1.cls", b" 7\n"),
            ("1.id", b"12"),
            ("1.json", b'{"a": [1, null]}'),
            ("1.meta.json.gz", gzip.compress(b'{"b": 2}')),
            ("1.txt", "Grüße".encode()),
            ("1.npy", npy(np.arange(6).reshape(2, 3))),
            ("1.npz", arrays.getvalue()),
            ("1.bin", b"\0\1"),
        ],
    )
    expected = list(map(autodecode.Decoder([autodecode.imagehandler("pil")]), streamed(path)))
    assert equal(list(TarShards(path)), expected)
    fields = ("jpg;png", "cls", "__key__")
    assert equal(list(TarShards(path, fields)), list(filters._to_tuple(expected, *fields)))


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    path = pack(tmp_path / "p.tar", [("1.pkl", pickle.dumps([1])), ("1.pth", b"x"), ("2.npy", npy(np.array([None])))])
    data = TarShards(path)
    assert data[0]["pkl"] == pickle.dumps([1])
    with pytest.raises(ValueError, match="allow_pickle"):
        data[1]
    assert TarShards(path, decoders={"pkl": pickle.loads})[0]["pkl"] == [1]


def test_fields_transforms_and_decoders(tmp_path: Path) -> None:
    path = pack(tmp_path / "f.tar", [("1.jpg", png(0)), ("1.seg.png", png(1, "P")), ("1.cls", b"3"), ("1.txt", b"dog")])
    size = lambda image: image.size  # noqa: E731
    assert TarShards(path, ("jpg", "cls"), transform=size, target_transform=str)[0] == ((30, 20), "3")
    named = TarShards(path, {"image": "webp;jpg", "mask": "seg.png", "name": "__key__"}, transform=size)[0]
    assert (named["image"], named["mask"].mode, named["name"]) == ((30, 20), "RGB", "1")
    stored = {"seg.png": lambda data: Image.open(io.BytesIO(data)).mode, "cls": None}
    assert TarShards(path, ("seg.png", "cls"), decoders=stored)[0] == ("P", b"3")
    assert TarShards(path, ("cls", "txt"), transforms=lambda label, text: text * label)[0] == "dogdogdog"
    assert TarShards(path, transforms=sorted)[0] == ["__key__", "__url__", "cls", "jpg", "seg.png", "txt"]
    assert TarShards(path, {"a": "cls"}, transforms=lambda sample: sample["a"])[0] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": "jpg"}, r"give a tuple, \('jpg',\)"),
        ({"fields": ()}, "gives nothing"),
        ({"transform": str}, "name them"),
        ({"fields": ("jpg",), "target_transform": str}, "name them"),
        ({"fields": ("jpg", "cls"), "transform": str, "transforms": str}, "not both"),
        (
            {"fields": ("jpg", "json")},
            r"1 of 2 samples have no member json; the first is b in .*, which has jpg, cls",
        ),
        ({"fields": ("png;webp",)}, "2 of 2 samples have no member png;webp; the first is a in"),
    ],
)
def test_what_cannot_be_is_said_at_once(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", [*PLAIN[:2], ("a.json", b"1"), *PLAIN[2:]])
    with pytest.raises(MonitorError, match=message):
        TarShards(path, **options)


def test_places(shards: str) -> None:
    data = TarShards(shards, ("cls",))
    assert len(data) == 24
    assert [data[place][0] for place in (0, 5, 6, -1, np.int64(7))] == [0, 5, 6, 23, 7]
    assert [label for (label,) in data] == list(range(24))
    for place in (24, -25):
        with pytest.raises(IndexError):
            data[place]
    with pytest.raises(TypeError):
        data["1"]  # type: ignore[index]
    assert repr(data) == "<TarShards: 24 samples in 4 shards>"


# ---- The paths of shards.


def test_patterns(shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shards).parent
    every = [str(folder / f"train-{number:04d}.tar") for number in range(4)]
    assert TarShards(shards).shards == every
    assert TarShards(folder / "train-*.tar").shards == every
    assert TarShards(f"file:{folder}/train-000[12].tar").shards == every[1:3]
    assert TarShards([every[2], folder / "train-{0003,0000}.tar"]).shards == [every[2], every[3], every[0]]
    twice = TarShards([every[0], every[0]], ("cls",))
    assert [label for (label,) in twice] == [*range(6), *range(6)]
    monkeypatch.chdir(folder)
    data = TarShards("train-0000.tar", ("cls",))
    monkeypatch.chdir("/")
    assert data[1] == (1,)
    (folder / "train-0000.tar").rename(folder / "odd[1]{a,b}.tar")
    assert len(TarShards(folder / "odd[1]{a,b}.tar")) == PER_SHARD


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("none-{0..3}.tar", r"4 of 4 shards are missing; the first is .*none-0\.tar"),
        ("none-*.tar", r"No shard matches .*none-\*\.tar"),
        ("none-{0..3.tar", "braces in .* cannot be read"),
        ("https://example.org/a.tar", "copy or mount"),
        ("pipe:cat a.tar", "copy or mount"),
        ("s3://bucket/{0..3}.tar", "copy or mount"),
        ([], "no shards"),
    ],
)
def test_shards_that_are_not_there(pattern: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MonitorError, match=message):
        TarShards(pattern)


# ---- The indexes in the cache.


def test_a_shard_is_scanned_once(shards: str, scans: list[str], cache: Path) -> None:
    first = list(TarShards(shards, decoders=RAW))
    assert sorted(scans) == [f"train-{number:04d}.tar" for number in range(4)]
    assert len(list(cache.iterdir())) == 4
    assert equal(list(TarShards(shards, decoders=RAW)), first)
    assert len(scans) == 4


def test_a_changed_shard_is_scanned_again(shards: str, scans: list[str], cache: Path) -> None:
    TarShards(shards)
    scans.clear()
    path = Path(shards).with_name("train-0002.tar")
    with tarfile.open(path, "a") as archive:
        info = tarfile.TarInfo("more.cls")
        info.size = 2
        archive.addfile(info, io.BytesIO(b"99"))
    assert [label for (label,) in TarShards(shards, ("cls",))] == [*range(18), 99, *range(18, 24)]
    assert scans == [path.name]
    os.utime(path, ns=(1, 1))  # of the same size
    TarShards(shards)
    assert scans == [path.name] * 2
    assert len(list(cache.iterdir())) == 4


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "another format"])
def test_a_damaged_index_is_made_again(
    damage: str, shards: str, scans: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(TarShards(shards, decoders=RAW))
    scans.clear()
    for file in cache.iterdir():
        content = bytearray(file.read_bytes())
        if damage == "cut":
            del content[-9:]
        elif damage == "changed":
            content[-1] ^= 1
        file.write_bytes(b"" if damage == "empty" else content)
    if damage == "another format":
        monkeypatch.setattr(tar_index, "_FORMAT", 2)
    assert equal(list(TarShards(shards, decoders=RAW)), expected)
    assert len(scans) == 4


def test_without_a_cache_the_shards_are_scanned_each_time(
    shards: str, scans: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("KERNEL_MONITOR_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        assert len(TarShards(shards)) == 24
    assert len(scans) == 8
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "The index of the shards is not kept, and made anew each time"
    ] * 2


def test_the_oldest_indexes_go(shards: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_index, "KEPT", 1500)
    TarShards(shards)
    assert 0 < len(list(cache.iterdir())) < 4


# ---- Bad shards.


def test_a_shard_that_was_cut_short_is_refused_or_reads_as_far_as_it_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The cuts that cannot be seen are those between two members; they are logged."""
    whole = pack(tmp_path / "whole.tar", [(f"{k}.txt", b"x" * 700) for k in range(3)]).read_bytes()
    path = tmp_path / "cut.tar"
    for length in range(0, 3 * 1536 + 1, 64):
        path.write_bytes(whole[:length])
        caplog.clear()
        if length and length % 1536 == 0:
            assert [sample["txt"] for sample in TarShards(path)] == ["x" * 700] * (length // 1536)
            assert "has no end mark" in caplog.text
        else:
            with pytest.raises(MonitorError, match="is no whole tar archive"):
                TarShards(path)


def test_bytes_that_are_no_member_are_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", [(f"{k}.txt", b"x" * 700) for k in range(3)])
    content = bytearray(path.read_bytes())
    content[1536 + 3] ^= 255  # in the second header
    path.write_bytes(content)
    with pytest.raises(MonitorError, match=r"byte 1,536 begins no member"):
        TarShards(path)


@pytest.mark.parametrize(("mode", "command"), [("gz", "gunzip"), ("bz2", "bunzip2"), ("xz", "unxz")])
def test_compressed_archives_are_refused(mode: str, command: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.tar.{mode}"
    with tarfile.open(path, f"w:{mode}") as archive:  # type: ignore[call-overload]
        archive.addfile(tarfile.TarInfo("1.txt"))
    with pytest.raises(MonitorError, match=rf"is compressed.*\({command}\)"):
        TarShards(path)


def test_other_files_are_refused(tmp_path: Path, cache: Path) -> None:
    text = tmp_path / "x.tar"
    text.write_text("no archive" * 100)
    with pytest.raises(MonitorError, match="is no whole tar archive"):
        TarShards(text)
    with pytest.raises(MonitorError, match="two members"):
        TarShards(pack(tmp_path / "two.tar", [("1.txt", b"1"), ("1.TXT", b"2")]))
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(MonitorError, match="is no regular file"):
        TarShards(tmp_path / "pipe.tar")
    assert not cache.exists()


def test_a_shard_that_changes_under_the_data_set_is_noticed(shards: str) -> None:
    data = TarShards(shards, ("jpg", "cls"), transform=CHAIN)
    path = Path(shards).with_name("train-0003.tar")
    content = path.read_bytes()
    tar_shards._opened.cache_clear()
    path.write_bytes(content + bytes(1024))
    with pytest.raises(MonitorError, match=r"train-0003\.tar has changed since the data set was made"):
        data[20]
    with pytest.raises(MonitorError, match="has changed"):
        list(switchable(DataLoader(data, batch_size=4), on_error="skip"))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        data[20]
    assert data[17][1] == 17


def test_a_shard_that_is_cut_while_it_is_open_is_noticed(shards: str) -> None:
    data = TarShards(shards, ("jpg", "cls"))
    assert data[18][1] == 18
    os.truncate(Path(shards).with_name("train-0003.tar"), 2048)
    with pytest.raises(OSError, match=r"train-0003\.tar ends before the end of .*train-0003\.tar/000023\.jpg"):
        data[23]


def test_errors_name_the_member(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", [("1.jpg", png(0)), ("1.cls", b"3"), ("2.jpg", b"no image"), ("2.cls", b"x")])
    with pytest.raises(ValueError, match="invalid literal") as raised:
        TarShards(path, ("cls",))[1]
    assert raised.value.__notes__ == [f"in {path}/2.cls"]
    data = TarShards(path, ("jpg", "__key__"), transform=CHAIN)
    loader = switchable(DataLoader(data, batch_size=2))
    with pytest.raises(SampleError, match="cannot identify image file") as bad:
        list(loader)
    assert (bad.value.path, bad.value.index) == (f"{path}/2.jpg", 1)
    loader = switchable(DataLoader(data, batch_size=2), on_error="skip")
    assert [list(keys) for _, keys in loader] == [["1"]]
    with pytest.raises(ValueError, match="invalid literal"):  # once more by plain torch, and raised
        list(switchable(DataLoader(TarShards(path, ("cls",)), batch_size=2)))


# ---- In loaders.


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])  # one of these imports torch
def test_workers_and_copies_read_for_themselves(context: str, workers: int, shards: str) -> None:
    data = TarShards(shards, ("jpg", "cls"), transform=v1.Compose([v1.Resize((8, 8)), v1.ToTensor()]))
    expected = [data[place] for place in range(24)]
    copies = pickle.loads(pickle.dumps(data))  # noqa: S301
    assert equal([copies[place] for place in range(24)], expected)
    loader = DataLoader(data, batch_size=None, num_workers=workers, multiprocessing_context=context)
    assert equal([list(sample) for sample in loader], [list(sample) for sample in expected])


def test_threads_share_more_shards_than_may_be_open(tmp_path: Path) -> None:
    count = tar_shards._OPEN + 20
    for number in range(count):
        pack(tmp_path / f"{number:03d}.tar", [("1.cls", b"%d" % number)])
    data = TarShards(tmp_path / "*.tar", ("cls",))
    wrong: list[int] = []

    def read(seed: int) -> None:
        for place in np.random.default_rng(seed).integers(0, count, 2000).tolist():
            wrong.extend([place] if data[place] != (place,) else [])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    tar_shards._opened.cache_clear()
    assert not [link for link in descriptors() if link.startswith(str(tmp_path)) and link.endswith(".tar")]


def descriptors() -> Iterator[str]:
    for link in Path("/proc/self/fd").iterdir():
        if link.is_symlink() and os.path.lexists(link):
            yield str(link.readlink())


@pytest.mark.parametrize("workers", [0, 2])
def test_dali_gives_the_same_samples(workers: int, shards: str) -> None:
    data = TarShards(shards, {"image": "jpg;png", "label": "cls", "rest": "json", "key": "__key__"}, transform=CHAIN)
    loader = switchable(DataLoader(data, batch_size=4, num_workers=workers), seed=3)
    plain = [batch["key"] for batch in DataLoader(data, batch_size=4)]
    expected, found = on_both(loader, list)
    assert [batch["key"] for batch in found] == [batch["key"] for batch in expected] == plain
    assert all(map(near, found, expected))
    assert loader.decoded() == {"dali-cpu": 24}
    assert loader.fallbacks() == []


def test_the_samples_of_a_batch_are_read_ahead(shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    original = os.posix_fadvise

    def advise(descriptor: int, offset: int, length: int, advice: int) -> None:
        asked.append((offset, length))
        original(descriptor, offset, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    data = TarShards(shards, ("jpg", "cls"), transform=CHAIN)
    loader = switch_to(switchable(DataLoader(Subset(data, [3, 20, -1]), batch_size=3)), "dali-cpu")
    (batch,) = loader
    assert batch[1].tolist() == [3, 20, 23]
    index = data._index
    for (offset, length), place in zip(asked, (3, 20, 23), strict=True):
        members = [member for _, member in index.members(place)]
        assert offset == index._offsets[members[0]]
        assert offset + length == index._offsets[members[-1]] + index._sizes[members[-1]]
    data.read_ahead(24)  # there is none


def test_a_transform_of_the_users_own_runs_after_dali(shards: str) -> None:
    def small(image: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image.resize((8, 8))))

    loader = switchable(DataLoader(TarShards(shards, ("jpg", "cls"), transform=small), batch_size=4))
    expected, found = on_both(loader, list)
    assert loader.decoded() == {"dali-cpu": 24}
    assert all(map(near, found, expected))


def test_decoders_of_the_users_own_are_followed(shards: str) -> None:
    opener = {"jpg": lambda data: Image.open(io.BytesIO(data)).convert("RGB")}
    loader = switchable(
        DataLoader(TarShards(shards, ("jpg", "cls"), transform=CHAIN, decoders=opener), batch_size=4), seed=3
    )
    expected, found = on_both(loader, list)
    assert loader.decoded() == {"dali-cpu": 24}
    assert all(map(near, found, expected))


def test_shuffled_epochs_swapped_in_their_middle_and_resumed(shards: str) -> None:
    data = TarShards(shards, ("jpg", "cls"), transform=CHAIN)

    def made() -> Any:
        order = torch.Generator().manual_seed(5)
        return switchable(DataLoader(data, batch_size=4, shuffle=True, generator=order), seed=3)

    whole = [labels.tolist() for _, labels in made()]
    assert sorted(chain.from_iterable(whole)) == list(range(24))
    loader, taken = made(), []
    for number, (_, labels) in enumerate(loader):
        taken.append(labels.tolist())
        if number == 1:
            switch_to(loader, "dali-cpu")
        if number == 3:
            break
    assert taken == whole[:4]
    assert set(loader.decoded()) == {"torchvision", "dali-cpu"}
    resumed = made()
    resumed.load_state_dict(loader.state_dict())
    assert [labels.tolist() for _, labels in resumed] == whole[4:]


def test_subsets_and_weights(shards: str) -> None:
    data = TarShards(shards, ("jpg", "cls"), transform=CHAIN)
    labels = [label for (label,) in TarShards(shards, ("cls",))]
    weights = [float(label % 2) for label in labels]
    sampler = WeightedRandomSampler(weights, 16, generator=torch.Generator().manual_seed(0))
    loader = switchable(DataLoader(Subset(data, range(24)), batch_size=4, sampler=sampler))
    switch_to(loader, "dali-cpu")
    seen = torch.cat([batch for _, batch in loader])
    assert len(seen) == 16
    assert bool((seen % 2 == 1).all())
    assert loader.decoded() == {"dali-cpu": 16}


def test_an_attached_loader_is_switched_in_mid_epoch(shards: str) -> None:
    with attaching():
        loader = DataLoader(TarShards(shards, ("jpg", "cls"), transform=CHAIN), batch_size=4)
        labels: list[int] = []
        for number, (_, batch) in enumerate(loader):
            labels += batch.tolist()
            if number == 0:
                click(loader)
            elif number == 1:
                wait_until_ready(loader)
        assert labels == list(range(24))
        assert engines_of(loader).backend == "dali-cpu"


def test_the_shards_are_the_files_that_other_machines_are_asked_for(shards: str) -> None:
    """A member's own name is no path."""
    data = TarShards(shards, ("jpg", "cls"), transform=CHAIN)
    assert FileSource(Subset(data, range(4))).known_paths(2) == [data.shards[0], data.shards[2]]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_stream_of_webdataset_is_watched_and_the_remedy_named(shards: str) -> None:
    webdataset = pytest.importorskip("webdataset")
    stream = webdataset.WebDataset(shards, shardshuffle=False).decode("pil").to_tuple("jpg;png", "cls")
    stream = stream.map_tuple(v1.Compose([v1.Resize((8, 8)), v1.ToTensor()]), int)
    loader = switchable(DataLoader(stream, batch_size=4))
    assert torch.cat([labels for _, labels in loader]).tolist() == list(range(24))
    backends = loader.backends.values()
    assert not any(backend.available for backend in backends)
    assert all(
        str(backend.reason).endswith(
            "kernel_monitor.TarShards(…) has the same samples with an index, and can be switched."
        )
        for backend in backends
    )
