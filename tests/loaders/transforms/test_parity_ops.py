from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1

from kernel_monitor.loaders.engines.dali_graph import Translated, define, pipeline
from kernel_monitor.loaders.random_streams import ApartFromTransforms
from kernel_monitor.loaders.transforms import albumentations
from kernel_monitor.loaders.transforms.chain import flatten
from kernel_monitor.loaders.transforms.colour import Jitter
from kernel_monitor.loaders.transforms.operation import Graph
from kernel_monitor.loaders.transforms.params import sample_keys
from kernel_monitor.loaders.transforms.translate import OPS, TIMM, scaling, translate

from ..conftest import Make, deliver, switch_to
from .op_chains import DIRECT, HYBRID, OF_ARRAYS, OF_ARRAYS_HYBRID
from .op_table import CONTAINERS, PAGE, Row, measured, mixed_photos, page

BAR = 0.5  # mean absolute difference of 255
IMAGES = 36


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_photos(tmp_path_factory.mktemp("mixed"), IMAGES)


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[dict[str, tuple[float, int]]]:
    """Mean difference and samples decoded by DALI, by chain; printed at the end."""
    found: dict[str, tuple[float, int]] = {}
    yield found
    decoded = sum(count for _, count in found.values())
    capture = request.config.pluginmanager.getplugin("capturemanager")
    if not found or capture is None:
        return
    with capture.global_and_fixture_disabled():
        for engine in sorted({name.rsplit(" ", 1)[1] for name in found}):
            of = {name: each for name, each in found.items() if name.endswith(engine)}
            worst = max(of, key=lambda name: of[name][0])
            print(f"\nparity: {len(of)} chains, largest mean {of[worst][0]:.3f} of 255 ({worst})")
        share = decoded / (IMAGES * len(found))
        print(f"{share:.1%} of {IMAGES * len(found)} samples decoded by these engines")


def whole(images: Any) -> torch.Tensor:
    return torch.cat([one.double().reshape(-1) for one in images])


def differences(make: Make, photos: Path, chain: Any) -> Iterator[tuple[str, torch.Tensor, int]]:
    """Run an epoch on torchvision and the same on each other engine.

    Yields the engine, each image's mean difference from torchvision's (pixel values), and the samples it decoded.
    """
    loader = make(root=photos, transform=chain, batch_size=12, num_workers=0)
    torchvision, targets = deliver(loader)
    unit = torch.tensor(scaling(list(flatten(chain)))).reshape(3, 1, 1) if torchvision.is_floating_point() else 1
    for engine in ("dali-cpu", "threads"):
        switch_to(loader, engine).set_epoch(0)
        images, same = deliver(loader)
        assert torch.equal(targets, same)
        assert images.dtype == torchvision.dtype
        assert images.shape == torchvision.shape
        each = (torchvision.double() / unit - images.double() / unit).abs().mean(dim=(1, 2, 3))
        assert loader.decoded() == {engine: IMAGES}
        yield engine, each, IMAGES


# Beside those that the page shows.
ORDERS: dict[str, Any] = {
    "flip first, bytes": v1.Compose([v1.RandomHorizontalFlip(), v1.RandomResizedCrop(40), v1.PILToTensor()]),
    "flip after floats": v1.Compose([v1.Resize((40, 44)), v1.ToTensor(), v1.RandomHorizontalFlip()]),
}
ALL = {**DIRECT, **ORDERS, **{name: chain for name, (chain, _) in HYBRID.items()}}


@pytest.mark.parametrize("name", [*DIRECT, *ORDERS])
def test_what_is_listed_as_direct_is_done_by_dali_as_torchvision_does_it(
    make: Make, photos: Path, tally: dict[str, tuple[float, int]], name: str
) -> None:
    chain = ALL[name]
    program = translate(chain)
    assert program.rest is None, program.reason
    for engine, each, decoded in differences(make, photos, chain):
        assert each.mean() <= BAR, engine
        assert each.max() <= 1.5, engine  # another crop, angle or box in a single image would be tens
        tally[f"{name} on {engine}"] = float(each.mean()), decoded


@pytest.mark.parametrize("name", [*DIRECT, *HYBRID])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "not fused"])
def test_each_chain_can_be_defined_for_a_gpu(name: str, fused: bool) -> None:
    """DALI refuses what cannot be on a GPU, such as a named argument there, before it needs one."""
    chain = ALL[name]
    program = translate(chain)
    nodes = partial(Translated(program, fused=fused).nodes, encoded=False)
    define(nodes, batch_size=4, threads=1, device=0)


class AsOnGpu(Graph):
    """The operations of a GPU, on the CPU."""

    def __init__(self, device: int | None) -> None:
        super().__init__(device)
        self.arguments_of_images = False


@pytest.mark.parametrize("cut", [True, False], ids=["as torch", "as Pillow"])
def test_colours_are_the_same_where_no_argument_comes_from_images(cut: bool) -> None:
    """The contrast of ColorJitter on a GPU."""
    images = list(np.random.default_rng(3).integers(0, 256, (8, 48, 64, 3), dtype=np.uint8))
    step = Jitter(0, (0.5, 1.5), (0.5, 1.5), (0.5, 1.5), cut, ())
    fed, _ = step.arrays(0, sample_keys(1, 0, range(8), [0] * 8), np.full((8, 2), 64))
    found = []
    for kind in (Graph, AsOnGpu):
        defined = pipeline(batch_size=8, threads=1, device=None)
        with defined:
            graph = kind(None)
            image = graph.fn.external_source(name="image", dtype=graph.types.UINT8, ndim=3, layout="HWC")
            defined.set_outputs(step.build(graph, 0, image))
        defined.build()
        for name, values in {"image": images, **{name: list(values) for name, values in fed.items()}}.items():
            defined.feed_input(name, values)
        found.append([np.array(one) for one in defined.run()[0]])
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))
    assert not np.array_equal(found[0][0], images[0])


@pytest.mark.parametrize("name", HYBRID)
def test_the_rest_of_a_chain_runs_after_dali_with_the_same_numbers(
    make: Make, photos: Path, tally: dict[str, tuple[float, int]], name: str
) -> None:
    chain, rest = HYBRID[name]
    assert translate(chain).rest == rest
    for engine, each, decoded in differences(make, photos, chain):
        assert each.mean() <= BAR, engine
        # Posterize and equalize may turn a difference of 1 into one of 16; other random numbers would be tens in all.
        assert each.median() <= BAR, engine
        tally[f"{name} on {engine}"] = float(each.mean()), decoded


@pytest.mark.parametrize("name", [*OF_ARRAYS, *OF_ARRAYS_HYBRID])
def test_chains_for_arrays(photos: Path, name: str) -> None:
    chain, rest = (OF_ARRAYS[name], None) if name in OF_ARRAYS else OF_ARRAYS_HYBRID[name]
    row = measured(photos, name, chain, "array")
    assert row.rest == rest
    assert row.mean <= BAR
    assert row.worst <= 1.5


REPORTED = ["SimCLR without hue", "RandomAffine", "RandomErasing", "AutoAugment", "RandomOrder", *ORDERS]
REPORTED += ["RandomResizedCrop", "RandomResizedCrop, v2", "Resize and CenterCrop", "Resize and CenterCrop, v2, padded"]
REPORTED += ["CenterCrop", "RandomResizedCrop after Resize", "ToDtype unscaled"]


@pytest.mark.parametrize("name", REPORTED)
def test_the_report_says_what_is_direct_and_that_parameters_are_equal(make: Make, photos: Path, name: str) -> None:
    chain = ALL[name]
    rest = translate(chain).rest
    found = make(root=photos, transform=chain, num_workers=0).parity(8)
    assert found.samples == 8
    assert found.parameters_equal
    assert found.mean <= BAR
    hows = [step.how for step in found.steps]
    if rest is None:
        assert set(hows) == {"direct"}
        assert found.reason is None
        assert all(step.mean <= BAR for step in found.steps)
    else:
        direct = hows.index("after DALI")
        assert set(hows[direct:]) == {"after DALI"}
        assert f"(transform {rest + 1} of" in str(found.reason)


def test_a_user_s_function_leaves_the_generators_of_the_training_alone(make: Make, photos: Path) -> None:
    loader = make(root=photos, transform=HYBRID["Lambda"][0], num_workers=0)
    switch_to(loader, "dali-cpu")
    before = np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002 - the one that functions draw from
    torch_before = torch.get_rng_state()
    with ApartFromTransforms():  # the order draws from torch's
        deliver(loader)
    assert (np.random.get_state(legacy=False)["state"]["key"] == before).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_before)


def test_the_page_lists_what_the_code_knows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = {
        **{name: Row(name, None, 0.0, 0.0) for name in DIRECT},
        **{name: Row(name, rest, 0.0, 0.0) for name, (_, rest) in HYBRID.items()},
    }
    arrays = {
        **{name: Row(name, None, 0.0, 0.0) for name in OF_ARRAYS},
        **{name: Row(name, rest, 0.0, 0.0) for name, (_, rest) in OF_ARRAYS_HYBRID.items()},
    }
    figures = re.compile(r"\d+\.\d\d(?= \|)")
    assert figures.sub("n", text) == figures.sub("n", page(rows, arrays)), (
        "python -m tests.loaders.transforms.op_table writes it anew"
    )
    listed = re.findall(r"^[|-] `(\w+)`", text, flags=re.MULTILINE)
    known = [name for name in OPS if name != "ToPILImage"]
    assert listed == [*known, *TIMM, *CONTAINERS, "ToPILImage", *albumentations.OPS]
    assert all(float(figure) <= BAR for line in text.splitlines() for figure in figures.findall(line)[:1])
