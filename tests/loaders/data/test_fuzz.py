"""Damaged JPEGs through DALI: the process lives, nothing hangs, and what is delivered is what Pillow says.

It runs in a process of its own, whose end would be seen. `make test-long` damages ten times as many (MUTANTS=6000).
"""

from __future__ import annotations

import json
import os

import pytest

from ..conftest import run_python

MUTANTS = int(os.environ.get("MUTANTS", "600"))
LIMIT = 60 + MUTANTS / 10  # s

FUZZ = """
import json, random, sys, time, warnings
from collections import Counter
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from kernel_monitor.errors import SampleError
from kernel_monitor.loaders import switchable
from tests.loaders.data.corpus import find, jpeg, picture, segments

warnings.simplefilter("ignore")  # Pillow's, about the files
root, seed, mutants = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
sizes = [(48, 64), (64, 48), (56, 56)]
options = [{}, {"subsampling": 0}, {"subsampling": 1}, {"restart_marker_blocks": 2}, {"progressive": True},
           {"optimize": True}, {"quality": 30}]
originals = [jpeg(picture("RGB", *size), **some) for size in sizes for some in options]
originals += [jpeg(picture("L", *size), progressive=gradual) for size in sizes for gradual in (False, True)]


def scan(data):  # bits of the first scan flipped
    start = find(data, 0xDA)[1]
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(start, len(data) - 2)] ^= 1 << rng.randrange(8)


def tables(data):  # bits of the quantisation and Huffman tables flipped
    places = [at for marker, start, end in segments(data) if marker in (0xC4, 0xDB) for at in range(start + 4, end)]
    for _ in range(rng.randrange(1, 3)):
        data[rng.choice(places)] ^= 1 << rng.randrange(8)


def headers(data):  # bytes within segments, the structure kept
    places = [at for _, start, end in segments(data) for at in range(start + 4, end)]
    for _ in range(rng.randrange(1, 4)):
        data[rng.choice(places)] = rng.randrange(256)


def anywhere(data):
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(2, len(data))] = rng.randrange(256)


def joined(data):  # the beginning of one, the end of another
    other = rng.choice(originals)
    data[rng.randrange(find(data, 0xDA)[1], len(data)) :] = other[rng.randrange(find(other, 0xDA)[1], len(other)) :]


def marked(data):  # a marker put in: any, a restart within the scan, a segment within the header
    kind, start = rng.randrange(4), find(data, 0xDA)[1]
    if kind == 0:
        at, new = rng.randrange(2, len(data)), bytes((0xFF, rng.randrange(256))) + rng.randbytes(rng.choice((0, 6)))
    elif kind == 1:
        at, new = rng.randrange(start, len(data) - 2), bytes((0xFF, 0xD0 + rng.randrange(8)))
    else:
        at = rng.choice([start for _, start, _ in segments(data)])
        new = bytes((0xFF, rng.choice((0xC4, 0xDB, 0xDD, 0xDC, 0xE1, 0xEE, 0xFE)), 0, 8)) + rng.randbytes(6)
    data[at:at] = new


def shortened(data):  # a piece taken out, the end kept
    at = rng.randrange(2, len(data) - 2)
    del data[at : min(len(data) - 2, at + rng.randrange(1, 200))]


def cut(data):
    del data[rng.randrange(len(data)) :]


def noise(data):
    at = rng.randrange(2, len(data))
    data[at : at + 100] = rng.randbytes(100)


kinds = [scan, scan, scan, scan, tables, headers, anywhere, joined, marked, shortened, cut, noise]
paths = [root / "class" / f"{number:03}.jpg" for number in range(200)]
paths[0].parent.mkdir()
for path in paths:
    path.write_bytes(originals[0])
chain = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor()])


def outcomes(loader):
    found, iterator = {}, iter(loader)
    while True:
        try:
            images, targets = next(iterator)
        except StopIteration:
            return found
        except SampleError as error:
            found[error.index] = str(error)
        else:
            for image in images:
                found[next(index for index in range(len(paths)) if index not in found)] = image


loader, plain = (switchable(DataLoader(ImageFolder(root, chain), batch_size=1), seed=1) for _ in range(2))
loader.switch("dali-cpu")
while loader.switch_state.preparing is not None:
    time.sleep(0.01)
done, decoded, errors, apart, by_kind = 0, 0, 0, [], Counter()
while done < mutants:
    given = []
    for path in paths:
        data, kind = bytearray(rng.choice(originals)), rng.choice(kinds)
        kind(data)
        path.write_bytes(data)
        given.append(kind.__name__)
    done += len(paths)
    ours, theirs = outcomes(loader), outcomes(plain)
    decoders = iter(loader.decoders())
    for index, kind in enumerate(given):
        mine, his = ours[index], theirs[index]
        if isinstance(mine, str) or isinstance(his, str):
            errors += 1
            same = isinstance(mine, str) and mine == his
        else:
            same = float((mine - his).abs().mean()) < 0.02
            by_kind[kind] += next(decoders) == "dali-cpu"
        if not same:
            apart.append([kind, str(mine)[:200], str(his)[:200]])
    decoded += loader.decoded().get("dali-cpu", 0)
    state = loader.state()
    assert state["lost"] == state["doubled"] == 0, state
    if loader.backend != "dali-cpu":
        loader.switch("dali-cpu")
        while loader.switch_state.preparing is not None:
            time.sleep(0.01)
print(json.dumps({"done": done, "decoded": decoded, "errors": errors, "apart": apart, "kinds": by_kind}))
"""


@pytest.mark.parametrize("seed", [1])
def test_damaged_jpegs_neither_crash_nor_hang_nor_differ(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    root = tmp_path_factory.mktemp("mutants")
    ran = run_python("-c", FUZZ, root, seed, MUTANTS, timeout=LIMIT)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    print(f"{found['done']} damaged JPEGs: {found['decoded']} decoded by DALI, {found['errors']} named errors")
    assert found["done"] >= MUTANTS
    assert found["decoded"] >= MUTANTS / 2
    assert found["errors"] >= MUTANTS / 20
    assert found["apart"] == []
    assert (
        min(found["kinds"].get(kind, 0) for kind in ("scan", "tables", "headers", "joined", "marked")) >= MUTANTS / 200
    )
