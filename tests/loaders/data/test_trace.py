"""Traces: calls of a data set's code, first without pixels, then with those that an engine computed."""

from __future__ import annotations

import copy
import gc
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.nn import functional as nn_functional
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import functional, v2

from kernel_monitor.loaders.data import trace_calls
from kernel_monitor.loaders.data.own_dataset import OwnDataset
from kernel_monitor.loaders.data.own_traces import Trace
from kernel_monitor.loaders.data.structure import equal
from kernel_monitor.loaders.data.trace import Mismatch, Node, following
from kernel_monitor.loaders.data.trace_calls import ReplayCall, TraceCall

Compute = Callable[[], Any]
Pixels = dict[Node, Any]
BILINEAR, NEAREST = Image.Resampling.BILINEAR, Image.Resampling.NEAREST
RIGHT, DOWN = Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM


@pytest.fixture(autouse=True)
def followed() -> None:
    """Let openers and functions follow calls, as a data set's examination does."""
    trace_calls.install()


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(1).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.fixture
def mask(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(2).integers(0, 21, (20, 30), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "mask.png")
    return tmp_path / "mask.png"


def first_call(compute: Compute, *, goes_on: bool = False) -> Trace:
    return Trace.of(compute, goes_on=goes_on)


def second_call(compute: Compute, *, goes_on: bool = False) -> Any:
    """Return the sample of a second call, with pixels that are computed here."""
    found = first_call(compute, goes_on=goes_on)
    return found.replayed(compute, pixels_of(found))


def pixels_of(found: Trace) -> Pixels:
    """What an engine computes."""
    return {end.node: end.node.given(end.node.real()) for end in found.ends}


def other_pixels_of(found: Trace) -> Pixels:
    """Pixels that only an engine can have computed."""
    return {end.node: end.node.given(negative(end.node.real())) for end in found.ends}


def negative(image: Any) -> Any:
    if isinstance(image, torch.Tensor):
        return -image if image.is_floating_point() else 255 - image
    return Image.fromarray(255 - np.asarray(image))


def checked(compute: Compute) -> Trace:
    """Check that all ways to the sample give what the code gives alone; return a trace that was not used yet."""
    real = compute()
    for goes_on in (False, True):
        assert equal(second_call(compute, goes_on=goes_on), real)
        found = first_call(compute, goes_on=goes_on)
        if found.held is not None:
            assert equal(found.filled(pixels_of(found)), real)
    return first_call(compute)


def only_node(found: Trace) -> Node:
    """Return the last node of a trace without branches."""
    (node,) = found.roots
    while node.children:
        (node,) = node.children
    return node


# ---- The second call is compared with the first.

Step = Callable[[Any], Any]
DIFFERENT: dict[str, tuple[Step, Step]] = {
    "box": (lambda i: i.crop((0, 0, 8, 8)), lambda i: i.crop((1, 0, 9, 8))),
    "size": (lambda i: i.resize((8, 8), BILINEAR), lambda i: i.resize((8, 9), BILINEAR)),
    "filter": (lambda i: i.resize((8, 8), BILINEAR), lambda i: i.resize((8, 8), NEAREST)),
    "direction": (lambda i: i.transpose(RIGHT), lambda i: i.transpose(DOWN)),
    "kind": (lambda i: i.transpose(RIGHT), lambda i: i.crop((0, 0, 30, 20))),
    "fill": (lambda i: ImageOps.expand(i, 2, fill=(1, 1, 1)), lambda i: ImageOps.expand(i, 2, fill=(2, 2, 2))),
    "tensor's part": (
        lambda i: functional.pil_to_tensor(i)[:, :8, :8],
        lambda i: functional.pil_to_tensor(i)[:, :8, 1:9],
    ),
    "tensor's value": (lambda i: functional.to_tensor(i) * 2, lambda i: functional.to_tensor(i) * 3),
    "tensor's value in place": (
        lambda i: functional.to_tensor(i).mul_(2),
        lambda i: functional.to_tensor(i).mul_(3),
    ),
    "tensor's type": (lambda i: functional.pil_to_tensor(i).float(), lambda i: functional.pil_to_tensor(i).long()),
    "mean": (
        lambda i: functional.normalize(functional.to_tensor(i), [0.5], [0.5]),
        lambda i: functional.normalize(functional.to_tensor(i), [0.4], [0.5]),
    ),
    "order": (lambda i: i.transpose(RIGHT).crop((0, 0, 8, 8)), lambda i: i.crop((0, 0, 8, 8)).transpose(RIGHT)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_different_second_call_is_a_mismatch(photo: Path, name: str) -> None:
    first, second = DIFFERENT[name]
    same = first_call(lambda: first(Image.open(photo)))
    same.replayed(lambda: first(Image.open(photo)), pixels_of(same))
    found = first_call(lambda: first(Image.open(photo)))
    with pytest.raises(Mismatch):
        found.replayed(lambda: second(Image.open(photo)), pixels_of(found))


def test_another_file_is_a_mismatch(photo: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.png"
    with Image.open(photo) as image:
        image.transpose(RIGHT).save(other)
    found = first_call(lambda: Image.open(photo).crop((0, 0, 8, 8)))
    with pytest.raises(Mismatch):
        found.replayed(lambda: Image.open(other).crop((0, 0, 8, 8)), pixels_of(found))


def test_a_mismatch_is_not_caught_by_the_data_sets_own_retries(photo: Path) -> None:
    def retrying(left: int) -> Any:
        try:
            return Image.open(photo).crop((left, 0, left + 8, 8))
        except Exception:  # noqa: BLE001 - as such loops do
            return None

    found = first_call(lambda: retrying(0))
    with pytest.raises(Mismatch):
        found.replayed(lambda: retrying(1), pixels_of(found))


def test_a_second_call_that_does_less_or_more_gives_what_it_does(photo: Path) -> None:
    found = first_call(lambda: Image.open(photo).crop((0, 0, 8, 8)).transpose(RIGHT))
    less = found.replayed(lambda: Image.open(photo).crop((0, 0, 8, 8)), pixels_of(found))
    assert equal(less.copy(), Image.open(photo).crop((0, 0, 8, 8)))
    found = first_call(lambda: Image.open(photo).crop((0, 0, 8, 8)))
    more = found.replayed(lambda: Image.open(photo).crop((0, 0, 8, 8)).transpose(RIGHT), pixels_of(found))
    assert equal(more.copy(), Image.open(photo).crop((0, 0, 8, 8)).transpose(RIGHT))


def test_one_more_file_in_the_second_call_is_decoded(photo: Path, mask: Path) -> None:
    found = first_call(lambda: [Image.open(photo).crop((0, 0, 8, 8))])
    both = found.replayed(
        lambda: [Image.open(photo).crop((0, 0, 8, 8)), functional.pil_to_tensor(Image.open(mask))], pixels_of(found)
    )
    assert torch.equal(both[1], torch.from_numpy(np.array(Image.open(mask)))[None])


def test_an_error_of_the_users_comes_again_in_the_second_call(photo: Path) -> None:
    def broken() -> Any:
        Image.open(photo).crop((0, 0, 8, 8))
        raise KeyError("no label")

    found = first_call(broken)
    with pytest.raises(KeyError, match="no label"):
        found.replayed(broken, pixels_of(found))


# ---- The pixels are the engine's.

GIVEN: dict[str, Step] = {
    "image": lambda i: i.resize((8, 8), BILINEAR),
    "bytes": lambda i: functional.pil_to_tensor(i.crop((1, 1, 9, 9))),
    "floats": lambda i: functional.to_tensor(i.crop((1, 1, 9, 9))),
    "a view of a tensor": lambda i: functional.pil_to_tensor(i)[..., 2:9, 3:9],
    "in place": lambda i: functional.to_tensor(i).sub_(0.5).div_(0.25),
    "normalized": lambda i: functional.normalize(functional.to_tensor(i), [0.5] * 3, [0.25] * 3),
    "v2": lambda i: v2.functional.to_dtype(v2.functional.to_image(i), torch.float32, scale=True),
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_sample_has_the_engines_pixels(photo: Path, name: str) -> None:
    def compute() -> Any:
        return {"image": GIVEN[name](Image.open(photo)), "label": 3}

    found = checked(compute)
    (end,) = found.ends
    assert end.node is only_node(found)
    expected = compute()["image"]
    replayed = found.replayed(compute, other_pixels_of(found))
    assert replayed["label"] == 3
    assert type(replayed["image"]) is type(expected)
    assert np.array_equal(np.asarray(replayed["image"]), np.asarray(negative(expected)))
    if isinstance(expected, torch.Tensor):
        assert replayed["image"].stride() == expected.stride()
    again = first_call(compute)
    assert again.held is not None
    filled = again.filled(other_pixels_of(again))
    assert equal(filled["image"], replayed["image"])


def test_what_follows_the_engines_part_is_computed_from_its_pixels(photo: Path) -> None:
    def inverted() -> Any:
        return functional.invert(Image.open(photo).crop((1, 1, 9, 9)))

    found = checked(inverted)
    expected = Image.open(photo).crop((1, 1, 9, 9))  # inverted twice
    assert equal(found.replayed(inverted, other_pixels_of(found)).copy(), expected.copy())
    again = first_call(inverted)
    assert equal(again.filled(other_pixels_of(again)).copy(), expected.copy())


# ---- Tensors in place, and views.


def test_a_change_in_place_is_seen_by_all_views_of_the_tensor(photo: Path) -> None:
    def compute() -> Any:
        whole = functional.to_tensor(Image.open(photo))
        row = whole[:, :1]
        whole.mul_(2)
        return row, whole

    checked(compute)


def test_a_change_of_a_part_in_place_is_seen_by_the_whole(photo: Path) -> None:
    def compute() -> Any:
        whole = functional.to_tensor(Image.open(photo))
        whole[:, 2:5, 2:5].zero_()
        whole[:, 6:8, 6:8] = 0.5
        return whole

    found = checked(compute)
    assert found.held is None or equal(found.sample, compute())


def test_a_tensor_changed_in_place_keeps_its_identity(photo: Path) -> None:
    def compute() -> Any:
        tensor = functional.to_tensor(Image.open(photo))
        changed = tensor.sub_(0.5)
        return tensor, changed

    found = checked(compute)
    first, second = found.replayed(compute, other_pixels_of(found))
    assert first.data_ptr() == second.data_ptr()


def test_a_clone_does_not_follow_changes_in_place(photo: Path) -> None:
    def compute() -> Any:
        tensor = functional.to_tensor(Image.open(photo))
        before = tensor.clone()
        return tensor.mul_(2), before

    checked(compute)


VIEWS: dict[str, Step] = {
    "unsqueeze": lambda t: t.unsqueeze(0),
    "batch of one": lambda t: t[None].squeeze(0),
    "view": lambda t: t.view(1, 3, 20, 30),
    "reshape": lambda t: t.reshape(3, 600),
    "permuted": lambda t: t.permute(1, 2, 0),
    "transposed": lambda t: t.transpose(1, 2),
    "flat": lambda t: t.flatten(),
    "a channel": lambda t: t[0],
    "rows": lambda t: t[:, 3:9],
    "every other": lambda t: t[:, ::2, ::2],
    "from the end": lambda t: t[..., -5:, -5:],
    "mask": lambda t: t[t > 100],
    "chunks": lambda t: t.chunk(3, dim=-1),
    "unbound": lambda t: t.unbind(0),
    "split": lambda t: torch.split(t, 10, dim=2),
    "expanded": lambda t: t[:1].expand(3, -1, -1),
    "narrow": lambda t: t.narrow(1, 2, 5),
    "of a view": lambda t: t[:, 2:12, 2:12][:, 1:5, 1:5],
    "stacked views": lambda t: torch.stack([t[..., :8, :8], t[..., 8:16, 8:16]]),
    "stacked with itself": lambda t: torch.stack([t, t]),
    "concatenated": lambda t: torch.cat([t[..., :10], t[..., 20:]], dim=-1),
    "dictionary of views": lambda t: {"left": t[..., :15], "right": t[..., 15:], "whole": t},
    "numpy": lambda t: t.numpy(),
    "an array of a view": lambda t: np.asarray(t[:, :4, :4]),
    "a list": lambda t: t.tolist(),
    "a number": lambda t: t[0, 3, 4].item(),
    "a sum": lambda t: t.sum(),
    "compared": lambda t: bool((t == t.clone()).all()),
    "iterated": lambda t: [row.clone() for row in t],
    "the same twice": lambda t: (t, t),
    "a storage": lambda t: t.untyped_storage().tolist()[:30],
    "flipped": lambda t: t.flip(-1),
    "rolled": lambda t: t.roll(3, -1),
    "padded": lambda t: nn_functional.pad(t, [1, 2, 3, 4], value=7),
    "scaled": lambda t: nn_functional.interpolate(t[None], size=(7, 9), mode="bilinear", antialias=True)[0],
    "scaled by a factor": lambda t: nn_functional.interpolate(t[None], scale_factor=0.5)[0],
    "channels last": lambda t: t[None].contiguous(memory_format=torch.channels_last),
    "copied": copy.deepcopy,
    "into another": lambda t: torch.zeros_like(t).copy_(t),
    "out of": lambda t: torch.mul(t, 2, out=torch.empty_like(t)),
    "both arguments": lambda t: t + t.flip(-1),
    "as the second": lambda t: 255 - t,
    "a part beside": lambda t: (t, t[:, :4, :4].sum()),
}


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning", "ignore:The image decoding:DeprecationWarning"
)
@pytest.mark.parametrize("opened_by", ["pil_to_tensor", "read_image", "to_tensor"])
@pytest.mark.parametrize("name", VIEWS)
def test_what_code_makes_of_a_tensor_is_what_it_makes_of_a_real_one(photo: Path, name: str, opened_by: str) -> None:
    from torchvision.io import decode_image as decoded

    def compute() -> Any:
        if opened_by == "read_image":
            return VIEWS[name](decoded(str(photo), mode="RGB"))
        return VIEWS[name](getattr(functional, opened_by)(Image.open(photo)))

    checked(compute)


def test_a_number_of_a_tensor_needs_a_second_call(photo: Path) -> None:
    def compute() -> Any:
        tensor = functional.pil_to_tensor(Image.open(photo))
        return tensor, int(tensor.max())

    assert checked(compute).held is None


# ---- Memory.


def test_memory_that_is_freed_is_forgotten(photo: Path) -> None:
    call = TraceCall(goes_on=False)
    with call:
        tensor = functional.pil_to_tensor(Image.open(photo))
        view = tensor[:, :4]
        assert len(call.tensors._memory) == 1
        del tensor
        gc.collect()
        assert len(call.tensors._memory) == 1  # the view holds the memory
        del view
        gc.collect()
        assert not call.tensors._memory


def test_a_tensor_of_the_users_own_in_freed_memory_is_no_image(photo: Path) -> None:
    def compute() -> Any:
        found = []
        for number in range(40):
            functional.pil_to_tensor(Image.open(photo)).float()
            found.append(torch.full((3, 20, 30), number, dtype=torch.uint8))
            found.append(torch.full((3, 20, 30), float(number)) + 1)
        return functional.pil_to_tensor(Image.open(photo)), found

    checked(compute)


def test_a_traces_images_are_freed_with_it(photo: Path) -> None:
    class Label:
        pass

    alive: list[Any] = []

    def compute() -> Any:
        import weakref

        label = Label()
        alive.append(weakref.ref(label))
        return functional.to_tensor(Image.open(photo)), label

    found = first_call(compute)
    del found
    gc.collect()
    assert alive[0]() is None


# ---- Threads of the user's.


def test_images_that_threads_open_are_real(photo: Path) -> None:
    def compute() -> Any:
        with ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(lambda left: np.array(Image.open(photo))[:, left : left + 4], (0, 4)))
        return Image.open(photo).crop((0, 0, 8, 8)), parts

    checked(compute)


def test_a_lazy_image_becomes_real_in_a_thread(photo: Path) -> None:
    def compute() -> Any:
        image = Image.open(photo).resize((16, 12), BILINEAR)
        with ThreadPoolExecutor(1) as pool:
            mean = pool.submit(lambda: float(np.asarray(image).mean())).result()
        return image, mean

    checked(compute)


class OfPaths(torch.utils.data.Dataset[Any]):
    """A data set whose code is a function of the path."""

    def __init__(self, paths: list[Path], function: Step) -> None:
        self.paths = paths
        self.function = function

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.function(self.paths[index])


def in_a_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_a_tensor_that_a_thread_reads_is_never_taken_for_proven(photo: Path) -> None:
    def with_mean(path: Path) -> Any:
        tensor = functional.to_tensor(Image.open(path).crop((0, 0, 16, 16)))
        return tensor, in_a_thread(tensor.mean)

    own = OwnDataset(OfPaths([photo] * 8, with_mean))
    own.learn_traces()
    sample = with_mean(photo)
    found = first_call(lambda: with_mean(photo))
    if own.forms is not None:
        assert not own.proven(sample)
        assert equal(found.replayed(lambda: with_mean(photo), pixels_of(found)), sample)


# ---- Samples of any structure.


class Record:
    """A class of the user's own."""

    def __init__(self, image: Any) -> None:
        self.image = image


def nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def innermost(value: Any) -> Any:
    while isinstance(value, list):
        (value,) = value
    return value


@pytest.mark.parametrize("to_tensor", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 5, 6, 7, 20])
def test_deep_containers(photo: Path, depth: int, to_tensor: bool) -> None:
    def compute() -> Any:
        image = Image.open(photo).crop((0, 0, 8, 8))
        return nested(functional.to_tensor(image) if to_tensor else image, depth)

    real = innermost(compute())
    found = first_call(compute)
    assert (found.held is None) == (depth > 6)  # then it is not found
    assert equal(innermost(found.replayed(compute, pixels_of(found))), real)
    if found.held is not None:
        assert equal(innermost(found.filled(pixels_of(found))), real)


@pytest.mark.parametrize("to_tensor", [False, True])
def test_an_image_in_an_object_of_the_users_needs_a_second_call(photo: Path, to_tensor: bool) -> None:
    def compute() -> Any:
        image = Image.open(photo).crop((0, 0, 8, 8))
        return Record(functional.to_tensor(image) if to_tensor else image)

    real = compute()
    found = first_call(compute)
    assert found.held is None
    assert equal(found.replayed(compute, pixels_of(found)).image, real.image)


def test_the_raw_image_and_the_transformed(photo: Path) -> None:
    def compute() -> Any:
        raw = Image.open(photo).convert("RGB")
        return {"raw": raw, "small": raw.resize((8, 8), BILINEAR), "tensor": functional.to_tensor(raw)}

    checked(compute)


def test_the_same_image_in_two_places(photo: Path) -> None:
    def compute() -> Any:
        image = Image.open(photo).crop((0, 0, 8, 8))
        return [image, image, image.copy()]

    found = checked(compute)
    replayed = found.replayed(compute, pixels_of(found))
    assert replayed[0] is replayed[1]
    assert replayed[2] is not replayed[0]


def test_image_and_mask(photo: Path, mask: Path) -> None:
    def compute() -> Any:
        rng = random.Random(7)
        left = rng.randrange(10)
        pair = [Image.open(path).crop((left, 2, left + 12, 14)) for path in (photo, mask)]
        return functional.to_tensor(pair[0]), torch.as_tensor(np.array(pair[1]), dtype=torch.int64)

    found = checked(compute)
    assert [end.node.form for end in found.ends][1] == "L"


# ---- Images that outlive their call.


def test_an_image_that_outlives_its_call_has_its_pixels(photo: Path) -> None:
    kept: list[Any] = []

    def compute() -> Any:
        image = Image.open(photo).crop((0, 0, 12, 12))
        kept.append(image.transpose(RIGHT))
        return image.resize((6, 6), BILINEAR)

    checked(compute)
    expected = Image.open(photo).crop((0, 0, 12, 12)).transpose(RIGHT)
    assert len(kept) > 3  # alone, in first calls and in second ones
    for image in kept:
        assert image.size == (12, 12)
        assert np.array_equal(np.asarray(image), np.asarray(expected))
        assert type(image) is Image.Image


def test_a_lazy_image_of_another_call_is_real(photo: Path) -> None:
    kept: list[Any] = []

    def compute() -> Any:
        kept.append(Image.open(photo).crop((0, 0, 12, 12)))
        return kept[0].resize((6, 6), BILINEAR), kept[-1]

    expected = Image.open(photo).crop((0, 0, 12, 12)).resize((6, 6), BILINEAR)
    first_call(compute)
    again = first_call(compute)
    small, _ = again.replayed(compute, pixels_of(again))
    assert equal(small, expected)


@pytest.mark.parametrize("name", ["to_tensor", "pil_to_tensor"])
def test_functions_that_are_followed_get_the_real_image_of_another_call(photo: Path, name: str) -> None:
    kept: list[Any] = []

    def compute() -> Any:
        kept.append(Image.open(photo).convert("RGB"))
        return getattr(functional, name)(kept[0])

    expected = getattr(functional, name)(Image.open(photo).convert("RGB"))
    first_call(compute)
    again = first_call(compute)
    assert equal(again.sample, expected)
    assert equal(again.replayed(compute, pixels_of(again)), expected)


# ---- What images say of themselves.


def test_a_lazy_image_says_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20), (9, 8, 7)).save(path, exif=exif, dpi=(72, 72))

    def described() -> Any:
        with Image.open(path) as image:
            part = image.crop((0, 0, 8, 8))
            return [
                *(image.size, image.width, image.height, image.mode, image.format, image.filename, image.getbands()),
                *(dict(image.getexif()), sorted(map(str, image.info)), isinstance(image, Image.Image)),
                *(part.size, part.mode, part.format, dict(part.getexif()), image.getexif().get(0x0112)),
            ]

    real = described()
    call = TraceCall(goes_on=False)
    with call:
        said = described()
    assert said == real
    assert not any(node.needed for node in call.roots)


def test_a_lazy_image_is_turned_as_its_orientation_says(tmp_path: Path) -> None:
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.effect_noise((30, 20), 60).convert("RGB").save(path, exif=exif)
    checked(lambda: ImageOps.exif_transpose(Image.open(path)).crop((0, 0, 8, 8)))


@pytest.mark.parametrize("mode", ["L", "P", "1", "I;16", "RGBA", "LA", "CMYK"])
def test_images_of_other_modes(tmp_path: Path, mode: str) -> None:
    path = tmp_path / f"image.{'tiff' if mode == 'CMYK' else 'png'}"
    noise = Image.effect_noise((30, 20), 60)
    image = Image.fromarray(np.asarray(noise).astype(np.uint16) * 7) if mode == "I;16" else noise.convert(mode)
    image.save(path)
    for compute in (
        lambda: Image.open(path).crop((2, 2, 12, 12)).transpose(RIGHT),
        lambda: Image.open(path).resize((7, 9)),
        lambda: Image.open(path).convert("RGB").resize((7, 9), BILINEAR),
        lambda: np.array(Image.open(path).crop((2, 2, 12, 12))),
        lambda: functional.pil_to_tensor(Image.open(path)),
    ):
        checked(compute)


def test_a_palette_needs_no_pixels(tmp_path: Path) -> None:
    path = tmp_path / "classes.png"
    image = Image.fromarray(np.arange(200, dtype=np.uint8).reshape(10, 20), "P")
    image.putpalette([value for k in range(256) for value in (k, 255 - k, k // 2)])
    image.save(path)

    def compute() -> Any:
        whole = Image.open(path)
        part = whole.crop((0, 0, 8, 8))
        part.putpalette(whole.getpalette() or [])
        return part, part.getpalette(), whole.getpalette("RGBA")

    assert checked(compute).held is not None

    def recoloured() -> Any:
        part = Image.open(path).crop((0, 0, 8, 8))
        part.putpalette([255 - value for value in part.getpalette() or ()])
        return part.convert("RGB")

    checked(recoloured)


# ---- torchvision's classes of tensors.


def test_classes_of_tensors_are_kept(photo: Path, mask: Path) -> None:
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(12, antialias=True),
            v2.RandomHorizontalFlip(1.0),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
        ]
    )

    def compute() -> Any:
        torch.manual_seed(3)
        image = tv_tensors.Image(Image.open(photo))
        classes = tv_tensors.Mask(Image.open(mask))
        boxes = tv_tensors.BoundingBoxes([[1, 2, 9, 9]], format="XYXY", canvas_size=image.shape[-2:])
        return transform(image, {"masks": classes, "boxes": boxes, "labels": torch.tensor([1])})

    real = compute()
    found = checked(compute)
    replayed = found.replayed(compute, pixels_of(found))
    for image, target in (real, replayed):
        assert type(image) is tv_tensors.Image
        assert type(target["masks"]) is tv_tensors.Mask
        assert type(target["boxes"]) is tv_tensors.BoundingBoxes
    assert equal(replayed[1]["boxes"], real[1]["boxes"])
    again = first_call(compute)
    if again.held is not None:
        image, target = again.filled(pixels_of(again))
        assert type(image) is tv_tensors.Image
        assert type(target["masks"]) is tv_tensors.Mask


@pytest.mark.parametrize("way", ["requires_grad_", "attribute", "argument"])
def test_requires_grad_is_kept(photo: Path, way: str) -> None:
    def compute() -> Any:
        tensor = functional.to_tensor(Image.open(photo).crop((0, 0, 8, 8)))
        if way == "requires_grad_":
            return tensor.requires_grad_()
        if way == "attribute":
            tensor.requires_grad = True
            return tensor
        return tv_tensors.Image(tensor, requires_grad=True)

    found = checked(compute)
    for tensor in (compute(), found.replayed(compute, pixels_of(found))):
        assert tensor.requires_grad
    again = first_call(compute)
    if again.held is not None:
        assert again.filled(pixels_of(again)).requires_grad


def test_torchvisions_random_transforms_draw_the_same_numbers(photo: Path) -> None:
    transform = v1.Compose(
        [
            v1.RandomResizedCrop(12),
            v1.RandomHorizontalFlip(),
            v1.ColorJitter(0.4, 0.4, 0.4, 0.1),
            v1.RandomGrayscale(0.2),
            v1.ToTensor(),
            v1.RandomErasing(0.5),
        ]
    )
    for seed in range(20):

        def compute(seed: int = seed) -> Any:
            torch.manual_seed(seed)
            return transform(Image.open(photo).convert("RGB")), torch.rand(1)

        checked(compute)


COLOURS: dict[str, Step] = {
    "brightness": lambda image: v2.functional.adjust_brightness(image, 1.5),
    "contrast": lambda image: v2.functional.adjust_contrast(image, 1.5),
    "saturation": lambda image: v2.functional.adjust_saturation(image, 1.5),
    "hue": lambda image: v2.functional.adjust_hue(image, 0.2),
    "gamma": lambda image: v2.functional.adjust_gamma(image, 1.5),
    "sharpness": lambda image: v2.functional.adjust_sharpness(image, 1.5),
    "grey": lambda image: v2.functional.rgb_to_grayscale(image, 3),
    "invert": v2.functional.invert,
    "posterize": lambda image: v2.functional.posterize(image, 3),
    "solarize": lambda image: v2.functional.solarize(image, 100),
    "autocontrast": v2.functional.autocontrast,
    "equalize": v2.functional.equalize,
}


@pytest.mark.parametrize("name", COLOURS)
def test_a_change_of_colours_needs_no_pixels_in_the_first_call(photo: Path, name: str) -> None:
    def compute() -> Any:
        return COLOURS[name](Image.open(photo).crop((2, 2, 12, 12))).transpose(RIGHT)

    found = checked(compute)
    assert not found.needed
    assert found.held is not None
    (end,) = found.ends
    assert end.node is found.roots[0].children[0]


# ---- The call and the process around it.


def fail_while_followed() -> None:
    assert following()
    raise ZeroDivisionError


def test_calls_end_with_their_block(photo: Path) -> None:
    for call in (TraceCall(goes_on=False), ReplayCall([], {})):
        with pytest.raises(ZeroDivisionError), call:
            fail_while_followed()
        assert not following()
        assert torch.overrides._get_current_function_mode_stack() == []
    with Image.open(photo) as image:
        assert type(image).__name__ == "PngImageFile"


def test_functions_are_replaced_once_in_a_process() -> None:
    before = functional.to_tensor, ImageOps.expand, v2.functional.pil_to_tensor
    trace_calls.install()
    assert (functional.to_tensor, ImageOps.expand, v2.functional.pil_to_tensor) == before


@pytest.fixture(autouse=True)
def files_closed(heap_frozen: None) -> Iterator[None]:
    yield
    gc.collect()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("chain", [v1.Normalize([0.5] * 3, [0.5] * 3), v1.GaussianBlur(3)], ids=["Normalize", "blur"])
def test_transforms_can_still_be_scripted(chain: Any) -> None:
    """torchvision's functions are replaced by ones with their signatures, which TorchScript compiles."""
    trace_calls.install()
    image = torch.rand(3, 8, 8)
    torch.manual_seed(0)
    plain = chain(image)
    torch.manual_seed(0)
    scripted: Any = torch.jit.script(chain)
    assert torch.allclose(scripted(image), plain, atol=1e-6)
