"""Tiny copies on disk of what torchvision's data sets expect: a few images each, in the published folder layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

Build = Callable[[Path, pytest.MonkeyPatch], Callable[..., Any]]  # makes the files; returns the class, but for options


def image(path: Path, mode: str = "RGB", *, seed: int | None = None) -> Path:
    """A small smooth image; each path has its own."""
    rng = np.random.default_rng(sum(map(ord, path.name)) if seed is None else seed)
    channels = {"L": (), "1": (), "RGB": (3,), "RGBA": (4,)}[mode]
    coarse = rng.integers(0, 256, (4, 5, *channels), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(coarse).resize((40, 32), Image.Resampling.BICUBIC).convert(mode)
    picture.save(path, quality=92)  # formats without a quality do without
    return path


def text(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def mat(path: Path, **content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    import_module("scipy.io").savemat(path, content)  # scikit-learn's; it has no types


def of_images(kind: Any, under: str, *names: str, **fixed: Any) -> Build:
    """A data set that needs nothing but its images."""

    def build(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
        for name in names:
            image(root / under / name)
        return partial(kind, root, **fixed)

    return build


def dataset_folder(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
    for name in ("cat/a.jpg", "dog/c.jpg"):
        image(root / name)
    return lambda **options: datasets.DatasetFolder(
        str(root), lambda path: Image.open(path).copy(), (".jpg",), **options
    )


def imagenet(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
    for name in ("n01440764/a.JPEG", "n02102040/c.JPEG"):
        image(root / "val" / name)
    torch.save(({"n01440764": ("tench",), "n02102040": ("springer",)}, []), root / "meta.bin")
    return partial(datasets.ImageNet, root, split="val")


def stanford_cars(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
    base = root / "stanford_cars"
    rows = [(image(base / "cars_train" / f"0000{n}.jpg").name, n) for n in (1, 2, 3)]
    mat(base / "devkit" / "cars_train_annos.mat", annotations=np.array(rows, dtype=[("fname", "O"), ("class", "O")]))
    mat(base / "devkit" / "cars_meta.mat", class_names=np.array(["Audi", "BMW", "Fiat"], dtype=object))
    return partial(datasets.StanfordCars, root)


def gtsrb_test(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
    image(root / "gtsrb" / "GTSRB" / "Final_Test" / "Images" / "00000.ppm")
    text(root / "gtsrb" / "GT-final_test.csv", "Filename;Width;Height;ClassId", "00000.ppm;40;32;16")
    return partial(datasets.GTSRB, root, split="test")


def places365(root: Path, patch: pytest.MonkeyPatch) -> Callable[..., Any]:
    patch.setattr(datasets.Places365, "_check_integrity", lambda *_: True)
    text(root / "categories_places365.txt", "/a/airfield 0", "/b/bar 1")
    text(root / "places365_train_standard.txt", "/a/airfield/1.jpg 0", "/b/bar/2.jpg 1")
    for name in ("a/airfield/1.jpg", "b/bar/2.jpg"):
        image(root / "data_large_standard" / name)
    return partial(datasets.Places365, root)


def places365_test(root: Path, patch: pytest.MonkeyPatch) -> Callable[..., Any]:
    patch.setattr(datasets.Places365, "_check_integrity", lambda *_: True)
    text(root / "categories_places365.txt", "/a/airfield 0")
    text(root / "places365_test.txt", "Places365_test_1.jpg")
    image(root / "test_256" / "Places365_test_1.jpg")
    return partial(datasets.Places365, root, split="test", small=True)


def flowers102(root: Path, patch: pytest.MonkeyPatch) -> Callable[..., Any]:
    patch.setattr(datasets.Flowers102, "_check_integrity", lambda _: True)
    base = root / "flowers-102"
    for number in (1, 2, 3):
        image(base / "jpg" / f"image_{number:05d}.jpg")
    mat(base / "setid.mat", trnid=np.array([[3, 1]]), valid=np.array([[2]]), tstid=np.array([[2]]))
    mat(base / "imagelabels.mat", labels=np.array([[77, 5, 102]]))
    return partial(datasets.Flowers102, root)


def food101(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
    base = root / "food-101"
    content = {"sushi": ["sushi/1", "sushi/2"], "baklava": ["baklava/3"]}
    text(base / "meta" / "train.json", json.dumps(content))
    for name in (name for names in content.values() for name in names):
        image(base / "images" / f"{name}.jpg")
    return partial(datasets.Food101, root)


def dtd(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
    names = ("woven/woven_1.jpg", "banded/banded_1.jpg")
    text(root / "dtd" / "dtd" / "labels" / "train1.txt", *names)
    for name in names:
        image(root / "dtd" / "dtd" / "images" / name)
    return partial(datasets.DTD, root)


def fgvc_aircraft(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
    base = root / "fgvc-aircraft-2013b" / "data"
    text(base / "families.txt", "A300", "Boeing 737")
    text(base / "images_family_trainval.txt", "0001 Boeing 737", "0002 A300")
    for name in ("0001", "0002"):
        image(base / "images" / f"{name}.jpg")
    return partial(datasets.FGVCAircraft, root, annotation_level="family")


def sun397(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
    text(root / "SUN397" / "ClassName.txt", "/a/abbey", "/b/bar/indoor")
    for name in ("a/abbey/sun_a.jpg", "b/bar/indoor/sun_b.jpg"):
        image(root / "SUN397" / name)
    return partial(datasets.SUN397, root)


def clevr(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
    base = root / "clevr" / "CLEVR_v1.0"
    names = ("CLEVR_train_0.png", "CLEVR_train_1.png")
    for name in names:
        image(base / "images" / "train" / name, "RGBA")
    scenes = [{"image_filename": name, "objects": [{}] * (3 + n)} for n, name in enumerate(names)]
    text(base / "scenes" / "CLEVR_train_scenes.json", json.dumps({"scenes": scenes}))
    return partial(datasets.CLEVRClassification, root)


def lfw_people(root: Path, patch: pytest.MonkeyPatch) -> Callable[..., Any]:
    patch.setattr(datasets.LFWPeople, "_check_integrity", lambda _: True)
    base = root / "lfw-py"
    text(base / "lfw-names.txt", "Ada_L\t2", "Alan_T\t1")
    text(base / "people.txt", "2", "1", "Alan_T\t1", "1", "Ada_L\t2")
    for name in ("Ada_L/Ada_L_0001", "Ada_L/Ada_L_0002", "Alan_T/Alan_T_0001"):
        image(base / "lfw_funneled" / f"{name}.jpg")
    return partial(datasets.LFWPeople, root)


def pets(types: Any) -> Build:
    def build(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
        base = root / "oxford-iiit-pet"
        text(base / "annotations" / "trainval.txt", "Abyssinian_1 1 1 1", "beagle_2 2 2 1")
        for name in ("Abyssinian_1", "beagle_2"):
            image(base / "images" / f"{name}.jpg", "L" if name == "beagle_2" else "RGB")
        return partial(datasets.OxfordIIITPet, root, target_types=types)

    return build


def caltech101(types: Any) -> Build:
    def build(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
        base = root / "caltech101" / "101_ObjectCategories"
        image(base / "BACKGROUND_Google" / "image_0001.jpg")
        for name in ("ant/image_0001.jpg", "ant/image_0002.jpg", "bass/image_0001.jpg"):
            image(base / name, "L" if name.startswith("bass") else "RGB")
        return partial(datasets.Caltech101, root, target_type=types)

    return build


def caltech256(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
    for name, mode in (("001.ak47/001_0001.jpg", "RGB"), ("002.flag/002_0001.jpg", "L")):
        image(root / "caltech256" / "256_ObjectCategories" / name, mode)
    return partial(datasets.Caltech256, str(root))


def celeba(types: Any) -> Build:
    def build(root: Path, patch: pytest.MonkeyPatch) -> Callable[..., Any]:
        patch.setattr(datasets.CelebA, "_check_integrity", lambda _: True)
        base = root / "celeba"
        names = ["000001.jpg", "000002.jpg", "000003.jpg"]
        for name in names:
            image(base / "img_align_celeba" / name)
        text(base / "list_eval_partition.txt", *(f"{name} {int(n == 1)}" for n, name in enumerate(names)))
        text(base / "identity_CelebA.txt", *(f"{name} {n + 70}" for n, name in enumerate(names)))
        for file, columns in (("list_bbox", 4), ("list_landmarks_align", 10), ("list_attr", 3)):
            header = " ".join(f"c{column}" for column in range(columns))
            rows = (
                f"{name} " + " ".join(str((n + c) % 2 * 2 - 1) for c in range(columns)) for n, name in enumerate(names)
            )
            text(base / f"{file}_celeba.txt", "3", header, *rows)
        return partial(datasets.CelebA, root, target_type=types)

    return build


def wider_face(split: str) -> Build:
    def build(root: Path, patch: pytest.MonkeyPatch) -> Callable[..., Any]:
        patch.setattr(datasets.WIDERFace, "_check_integrity", lambda _: True)
        base = root / "widerface"
        names = ["0--Parade/a.jpg", "1--Handshaking/b.jpg"]
        for name in names:
            image(base / f"WIDER_{split}" / "images" / name)
        boxes = [[names[0], "1", "1 2 3 4 0 0 0 0 0 0"], [names[1], "2", "5 6 7 8 1 0 0 0 1 0", "1 1 2 2 0 0 0 0 0 0"]]
        text(base / "wider_face_split" / "wider_face_train_bbx_gt.txt", *(line for box in boxes for line in box))
        text(base / "wider_face_split" / "wider_face_test_filelist.txt", *names)
        return partial(datasets.WIDERFace, str(root), split=split)

    return build


def inaturalist(version: str, types: Any) -> Build:
    def build(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
        folders = ["00000_Animalia_Arthropoda_Insecta_Coleoptera_Cleridae_Trichodes_x", "00001_Plantae_B_C_D_E_F_y"]
        if version == "2018":
            folders = ["Aves/0", "Plantae/1"]
        for folder in folders:
            image(root / version / folder / "a.jpg")
        return partial(datasets.INaturalist, root, version=version, target_type=types)

    return build


def omniglot(root: Path, patch: pytest.MonkeyPatch) -> Callable[..., Any]:
    patch.setattr(datasets.Omniglot, "_check_integrity", lambda _: True)
    for name in ("Greek/character01/0001_01.png", "Greek/character02/0002_01.png"):
        image(root / "omniglot-py" / "images_background" / name, "1")
    return partial(datasets.Omniglot, root)


def sbu(root: Path, patch: pytest.MonkeyPatch) -> Callable[..., Any]:
    patch.setattr(datasets.SBU, "_check_integrity", lambda _: True)
    image(root / "dataset" / "b.jpg")
    text(root / "dataset" / "SBU_captioned_photo_dataset_urls.txt", "http://x/a.jpg", "http://x/b.jpg")
    text(root / "dataset" / "SBU_captioned_photo_dataset_captions.txt", "a lost photo", "a bee")
    return partial(datasets.SBU, root, download=False)


def flickr8k(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
    image(root / "17_abc.jpg")
    page = "<table><tr><td><a>http://www.flickr.com/photos/17/</a><ul><li>a bee</li><li>a flower</li></ul></td></table>"
    text(root / "ann.html", page)
    return partial(datasets.Flickr8k, str(root), str(root / "ann.html"))


def flickr30k(root: Path, _: pytest.MonkeyPatch) -> Callable[..., Any]:
    image(root / "1.jpg")
    text(root / "ann.token", "1.jpg#0\ta bee", "1.jpg#1\ta flower")
    return partial(datasets.Flickr30k, str(root), str(root / "ann.token"))


LAYOUTS: dict[str, Build] = {
    "ImageFolder": of_images(datasets.ImageFolder, "", "cat/a.jpg", "cat/b.png", "dog/c.jpeg"),
    "DatasetFolder": dataset_folder,
    "Imagenette": of_images(
        datasets.Imagenette,
        "imagenette2-160/train",
        *("n01440764/a.JPEG", "n01440764/b.JPEG", "n02102040/c.JPEG"),
        size="160px",
    ),
    "ImageNet": imagenet,
    "Country211": of_images(datasets.Country211, "country211/valid", "AT/a.jpg", "ZW/b.jpg", split="valid"),
    "EuroSAT": of_images(datasets.EuroSAT, "eurosat/2750", "Forest/Forest_1.jpg", "River/River_1.jpg"),
    "StanfordCars": stanford_cars,
    "RenderedSST2": of_images(
        datasets.RenderedSST2, "rendered-sst2/valid", "negative/a.png", "positive/b.png", split="val"
    ),
    "GTSRB": of_images(datasets.GTSRB, "gtsrb/GTSRB/Training", "00000/a.ppm", "00007/b.ppm"),
    "GTSRB-test": gtsrb_test,
    "Places365": places365,
    "Places365-test": places365_test,
    "Flowers102": flowers102,
    "Food101": food101,
    "DTD": dtd,
    "FGVCAircraft": fgvc_aircraft,
    "SUN397": sun397,
    "CLEVRClassification": clevr,
    "LFWPeople": lfw_people,
    "OxfordIIITPet": pets("category"),
    "OxfordIIITPet-binary": pets("binary-category"),
    "OxfordIIITPet-both": pets(["category", "binary-category"]),
    "OxfordIIITPet-none": pets([]),
    "Caltech101": caltech101("category"),
    "Caltech101-twice": caltech101(["category", "category"]),
    "Caltech256": caltech256,
    "CelebA": celeba("attr"),
    "CelebA-identity": celeba("identity"),
    "CelebA-all": celeba(["attr", "identity", "bbox", "landmarks"]),
    "CelebA-none": celeba([]),
    "WIDERFace": wider_face("train"),
    "WIDERFace-test": wider_face("test"),
    "INaturalist": inaturalist("2021_valid", "full"),
    "INaturalist-ranks": inaturalist("2021_valid", ["full", "kingdom", "genus"]),
    "INaturalist-2018": inaturalist("2018", "super"),
    "Omniglot": omniglot,
    "SBU": sbu,
    "Flickr8k": flickr8k,
    "Flickr30k": flickr30k,
}
