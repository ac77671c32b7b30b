"""Data sets that expect some files to be bad, and what they do then.

The exception of a file that is missing or is no image comes from the opener; that of a file that is cut off comes only
when pixels are read.
"""

# ruff: noqa: BLE001, E722 - people catch everything

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset

from .case import Case, without_none
from .folder import fixed, photos
from .plain import MyDataset
from .reasons import CUT_OFF, NO_FORMAT, NOT_RGB, ONLY_DECODED, PIXELS, SEVERAL, UNOPENED, either

MISSING = Path("missing.jpg")


class Base(Dataset[Any]):
    """What the data sets of this module share."""

    def __init__(self, paths: Sequence[Path], transform: Any = None) -> None:
        self.paths = list(paths)
        self.transform = fixed() if transform is None else transform

    def __len__(self) -> int:
        return len(self.paths)


class NextInstead(Base):
    """The idiom that gave this module its reason to be."""

    def __getitem__(self, index: int) -> Any:
        try:
            image = Image.open(self.paths[index]).convert("RGB")
        except Exception:
            return self[(index + 1) % len(self)]
        return self.transform(image), self.paths[index].name


class NextInALoop(Base):
    def __getitem__(self, index: int) -> Any:
        while True:
            try:
                img = self.transform(Image.open(self.paths[index]).convert("RGB"))
                break
            except (OSError, UnidentifiedImageError):
                index = index + 1 if index + 1 < len(self.paths) else 0
        return {"img": img, "index": index}  # type: ignore[possibly-undefined]


class AnyInstead(Base):
    """Whichever comes."""

    def __getitem__(self, index: int) -> Any:
        try:
            return self.transform(Image.open(self.paths[index]).convert("RGB")), index
        except Exception:
            return self.__getitem__(random.randint(0, 20))


class NoneInstead(Base):
    def __getitem__(self, index: int) -> Any:
        try:
            image = Image.open(self.paths[index]).convert("RGB")
            return self.transform(image), index
        except:
            return None


class BlackInstead(Base):
    """A black image, and a flag that says so."""

    def __getitem__(self, index: int) -> Any:
        ok = True
        try:
            with Image.open(self.paths[index]) as f:
                image = f.convert("RGB")
        except OSError as e:
            self.warn(e)
            image, ok = Image.new("RGB", (64, 64)), False
        return self.transform(image), ok

    def warn(self, error: OSError) -> None:
        pass


class Retrying(Base):
    """A network drive that sometimes fails for a moment."""

    tries = 3

    def _open(self, path: Path) -> Image.Image:
        for attempt in range(self.tries):
            try:
                return Image.open(path).convert("RGB")
            except OSError:
                if attempt == self.tries - 1:
                    raise
                time.sleep(0.01 * 2**attempt)
        raise AssertionError

    def __getitem__(self, index: int) -> Any:
        return self.transform(self._open(self.paths[index])), index


class Catching(Base):
    """Pixels are read within a loop that catches everything: what ends a dry run by an exception never ends here."""

    def __getitem__(self, index: int) -> Any:
        while True:
            try:
                image = Image.open(self.paths[index]).convert("RGB")
                if np.array(image).std() < 1:
                    raise ValueError("blank")
                return self.transform(image), index
            except:
                index = (index + 1) % len(self.paths)


class CatchingSome(Base):
    """Only blank images are passed over; errors of ours would be taken for one of the file."""

    def __getitem__(self, index: int) -> Any:
        try:
            image = Image.open(self.paths[index]).convert("RGB")
            low, high = image.convert("L").getextrema()
            if low == high:
                return self[index + 1]
        except Exception as e:
            raise RuntimeError(f"could not load {self.paths[index]}: {e}") from e
        return self.transform(image), index


class CheckedAtTheStart(Base):
    """Bad files are left out beforehand."""

    def __init__(self, paths: Sequence[Path], transform: Any = None) -> None:
        super().__init__([path for path in paths if self.is_valid(path)], transform)

    @staticmethod
    def is_valid(path: Path) -> bool:
        try:
            with Image.open(path) as img:
                img.load()
        except (OSError, SyntaxError):
            return False
        return True

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.paths[index]).convert("RGB")), self.paths[index].stem


class Elsewhere(Base):
    """Where a file is missing, another one stands for it: looked for, not caught."""

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        found = path.is_file()
        image = Image.open(path if found else self.paths[0]).convert("RGB")
        return self.transform(image), found


class SafeDataset(Dataset[Any]):
    """Around any data set."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, idx: int) -> Any:
        try:
            return self.dataset[idx]
        except Exception:
            return None


def with_odd(kind: Callable[[list[Path]], Any], name: str | Path) -> Callable[[Path], Any]:
    """A data set over the photos with a bad file among them, the twelfth."""

    def make(folder: Path) -> Any:
        paths = photos(folder)
        return kind([*paths[:11], folder / "odd" / name, *paths[11:]])

    return make


def _safe(paths: list[Path]) -> Dataset[Any]:
    return SafeDataset(MyDataset(paths, [0] * len(paths), fixed()))


def fallback(name: str, kind: Callable[[list[Path]], Any], file: str | Path, reason: str, **more: Any) -> Case:
    return Case(name, with_odd(kind, file), "fallback", reason, samples=25, odd=1, **more)


LEFT_OUT: dict[str, Any] = {"collate": without_none, "dropped": 1}

CASES = (
    fallback("next one instead of a cut file", NextInstead, "cut.jpg", CUT_OFF),
    fallback("next one instead of a missing file", NextInstead, MISSING, UNOPENED),
    fallback("next one in a loop", NextInALoop, "text.jpg", NO_FORMAT),
    fallback("next one in a loop, cut file", NextInALoop, "cut.jpg", CUT_OFF),
    fallback("any instead", AnyInstead, "cut.jpg", CUT_OFF, random=True),
    fallback("None instead of a cut file", NoneInstead, "cut.jpg", CUT_OFF, **LEFT_OUT),
    fallback(
        "None instead of a missing file",
        NoneInstead,
        MISSING,
        UNOPENED,
        note="A bare except: it catches whatever ends a dry run.",
        **LEFT_OUT,
    ),
    fallback("black image instead", BlackInstead, "cut.jpg", CUT_OFF),
    Case("retries, all files good", lambda folder: Retrying(photos(folder))),
    Case(
        "blank images passed over in a loop",
        lambda folder: Catching(photos(folder)),
        "offered",
        "",
        unsent=SEVERAL,
        note="An exception that ends the dry run would be caught, and the loop would never end.",
    ),
    Case(
        "blank images passed over, errors renamed",
        lambda folder: CatchingSome(photos(folder)),
        "grey",
        ONLY_DECODED,
        unsent=either(PIXELS, NOT_RGB),
        note="The reason is not the RuntimeError that the data set makes of what ends the dry run.",
    ),
    Case("checked at the start", with_odd(CheckedAtTheStart, "cut.jpg")),
    Case("another file where one is missing", with_odd(Elsewhere, MISSING), samples=25),
    fallback("SafeDataset around MyDataset", _safe, "cut.jpg", CUT_OFF, **LEFT_OUT),
)
