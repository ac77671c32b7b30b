"""One demo picture: painted, lit, grained and compressed so that it decodes like a photograph.

A picture is a *dead leaves* scene (Matheron; Lee, Mumford and Huang, "Occlusion models for natural images", 2001):
shapes of power-law sizes that occlude each other, which gives the 1/f spectrum and the hard edges of photographs.
On it come textures with their own spectra, uneven light, depth of field and sensor noise. Deterministic:
the pixels are a function of (seed, index, label) alone, whichever process draws them.
"""

from __future__ import annotations

import colorsys
import io
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

VERSION = 1
"""Grows when the same (seed, index, label) no longer gives the same file."""

SMALLEST, LARGEST = 112_640, 150_000
"""Bounds of a file's size in bytes (110 KiB, 150 kB: inside the promised range however a kilobyte is counted)."""

HUES = ("red", "orange", "yellow", "lime", "green", "jade", "cyan", "azure", "blue", "violet", "magenta", "rose")
SHAPES = ("discs", "leaves", "blocks", "shards", "stars")
MOST_CLASSES = len(HUES) * len(SHAPES)

Field = npt.NDArray[np.float32]
_TILE = 1024  # side of a texture tile in pixels; crops of it, flipped and transposed, rarely look alike
_ASPECTS = (4 / 3, 3 / 2, 5 / 4, 1.0)
_QUALITIES = range(84, 99)  # what cameras and photo sites write


def class_name(label: int) -> str:
    """The folder's name of class `label` (0 to MOST_CLASSES - 1), e.g. `red-discs`: what a person sees in it."""
    return f"{HUES[label % len(HUES)]}-{SHAPES[label % len(SHAPES)]}"


def jpeg(seed: int, index: int, label: int) -> bytes:
    """Picture number `index` of a set, of class `label`, as a JPEG file.

    Long side 400 to 600 pixels, landscape or portrait, SMALLEST to LARGEST bytes, 4:4:4 or 4:2:0 chroma.

    Raises:
        ValueError: for a label that is out of range.
        RuntimeError: if no quality brings the file into the bounds.
    """
    if not 0 <= label < MOST_CLASSES:
        raise ValueError(f"label {label} is not one of 0 to {MOST_CLASSES - 1}")
    rng = np.random.default_rng([VERSION, seed, index, label])
    area = rng.uniform(168_000, 235_000)
    aspect = rng.choice(_ASPECTS, p=(0.5, 0.3, 0.12, 0.08))
    if rng.random() < 0.3:
        aspect = 1 / aspect
    width, height = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
    wanted = float(np.clip(width * height * rng.normal(4.9, 0.25) / 8, 116_000, 144_000))
    subsampling = int(rng.choice((0, 2)))  # Pillow's names: 0 is 4:4:4, 2 is 4:2:0
    pixels = _paint(rng, width, height, label)
    for _ in range(6):
        best = _compress(pixels, wanted, subsampling)
        if SMALLEST <= len(best) <= LARGEST:
            return best
        if len(best) < wanted:  # too smooth a scene even at the best quality: a higher ISO
            pixels = pixels + 3 * rng.standard_normal(pixels.shape, np.float32)
        else:  # too fine a scene: a softer lens
            pixels = np.asarray(_image(pixels).filter(ImageFilter.GaussianBlur(0.6)), np.float32)
    raise RuntimeError(f"picture {index} (seed {seed}, class {label}) does not compress to {SMALLEST}-{LARGEST} bytes")


def _compress(pixels: Field, wanted: float, subsampling: int) -> bytes:
    """The JPEG nearest to `wanted` bytes, one within the bounds before all others.

    Size grows with quality, so bisection tries the neighbours on either side of `wanted`; they are 10 % apart.
    """
    picture = _image(pixels)
    low, high = 0, len(_QUALITIES) - 1
    best, least = b"", (True, np.inf)
    while low <= high:
        middle = (low + high) // 2
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=_QUALITIES[middle], subsampling=subsampling)
        tried = buffer.getvalue()
        off = (not SMALLEST <= len(tried) <= LARGEST, abs(len(tried) - wanted))
        if off < least:
            best, least = tried, off
        if len(tried) < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return best


def _image(pixels: Field) -> Image.Image:
    return Image.fromarray(np.clip(pixels + 0.5, 0, 255).astype(np.uint8))


def _paint(rng: np.random.Generator, width: int, height: int, label: int) -> Field:
    """The scene, float32 [height, width, 3], about 0 to 255."""
    hue = (label % len(HUES)) / len(HUES)
    canvas = (2 * width, 2 * height)  # painted at twice the size: shrinking makes edges as soft as a lens does

    back, back_strengths = Image.new("RGB", canvas), Image.new("RGB", canvas)
    _scatter(rng, back, back_strengths, None, "blocks" if rng.random() < 0.5 else "discs", 160, None)
    front, front_strengths, mask = back.copy(), back_strengths.copy(), Image.new("L", canvas)
    _scatter(rng, front, front_strengths, mask, SHAPES[label % len(SHAPES)], int(rng.integers(120, 260)), hue)

    scene: Field = _textured(rng, front.reduce(2), front_strengths.reduce(2))
    blur = float(rng.choice((0.0, 1.5, 4.0)))
    if blur:  # depth of field: the background is out of focus
        behind = _image(_textured(rng, back.reduce(2), back_strengths.reduce(2)))
        blurred = np.asarray(behind.filter(ImageFilter.GaussianBlur(blur)), np.float32)
        share = np.asarray(mask.reduce(2), np.float32)[..., None] / 255
        scene = (blurred + (scene - blurred) * share).astype(np.float32)

    light = 1 + 0.25 * _window(rng, _tiles().cloud, height, width)[..., None]
    scene *= np.clip(light, 0.3, 1.8)
    # shot noise grows with the square root of the light; cameras suppress its colour more than its brightness
    noise = np.sqrt(np.clip(scene, 0, 255) / 255 + 0.05) * np.float32(rng.uniform(1.0, 2.6))
    grey, *tints = (_window(rng, _tiles().white, height, width) for _ in range(4))
    for channel, tint in enumerate(tints):
        scene[..., channel] += noise[..., channel] * (0.9 * grey + 0.45 * tint)
    return scene


def _textured(rng: np.random.Generator, colours: Image.Image, strengths: Image.Image) -> Field:
    """Colours times textures, float32 [height, width, 3]; `strengths` has a channel per tile, 255 for one half."""
    pixels = np.array(colours, np.float32)
    strong = np.asarray(strengths, np.float32) * np.float32(0.5 / 255)
    height, width = strong.shape[:2]
    fine, grained, cloud = (
        _window(rng, tile, height, width) * strong[..., k]
        for k, tile in enumerate((_tiles().fine, _tiles().grained, _tiles().cloud))
    )
    pixels *= (1 + fine + grained + cloud)[..., None]
    pixels[..., 0] += 6 * fine  # a texture in nature is never quite grey
    pixels[..., 2] += 6 * (cloud - grained)
    return pixels


def _scatter(
    rng: np.random.Generator,
    colours: Image.Image,
    textures: Image.Image,
    mask: Image.Image | None,
    shape: str,
    count: int,
    hue: float | None,
) -> None:
    """Drops `count` shapes, from far to near, on all given canvases; without a hue in dull colours of any hue."""
    width, height = colours.size
    side = (width * height) ** 0.5
    if mask is None:
        ground = _colour(rng, None)
        colours.paste(ground, (0, 0, width, height))
        textures.paste(_strengths(rng), (0, 0, width, height))
    draws = [ImageDraw.Draw(image) for image in (colours, textures, mask) if image is not None]
    # density of radii r^-3 between two bounds: scale invariance, hence the 1/f spectrum
    smallest, largest = (0.012, 0.35) if mask is None else (0.014, 0.22)
    radii = side / np.sqrt(rng.uniform(1 / largest**2, 1 / smallest**2, count))
    centres = rng.uniform(0, 1, (count, 2)) * (width, height)
    turns = rng.uniform(0, 2 * np.pi, count)
    squeezes = rng.uniform(0.75, 1.0, count)
    cos, sin = np.cos(turns) * radii, np.sin(turns) * radii
    bases = np.stack([np.stack([cos, sin], -1), np.stack([-sin * squeezes, cos * squeezes], -1)], 1)
    for corners in _outline(shape) @ bases + centres[:, None, :]:
        points = corners.ravel().tolist()
        fills: list[tuple[int, int, int] | int] = [_colour(rng, hue), _strengths(rng), 255]
        for draw, fill in zip(draws, fills, strict=False):
            draw.polygon(points, fill=fill)


def _colour(rng: np.random.Generator, hue: float | None) -> tuple[int, int, int]:
    """A surface's colour: near `hue` for the subject of the picture, dull and of any hue for its surroundings."""
    if hue is None:
        parts = colorsys.hsv_to_rgb(rng.random(), rng.uniform(0, 0.3), rng.uniform(0.15, 0.9))
    else:
        parts = colorsys.hsv_to_rgb((hue + rng.normal(0, 0.02)) % 1, rng.uniform(0.3, 0.85), rng.uniform(0.25, 0.95))
    red, green, blue = (round(255 * part) for part in parts)
    return red, green, blue


def _strengths(rng: np.random.Generator) -> tuple[int, int, int]:
    """How strongly each of the three textures shows on a surface: mostly faint, now and then marked."""
    fine, grain, cloud = (int(255 * x) for x in rng.beta(1.2, 4.0, 3))
    return fine, grain, cloud


@cache
def _outline(shape: str) -> npt.NDArray[np.float64]:
    """Corners of a shape of radius one, float64 [n, 2]."""
    if shape == "blocks":
        return np.array([(-1, -0.6), (1, -0.6), (1, 0.6), (-1, 0.6)], np.float64)
    if shape == "shards":
        return np.array([(-0.8, -0.5), (1.2, -0.1), (-0.4, 0.9)], np.float64)
    if shape == "leaves":
        along = np.linspace(-1, 1, 12)
        bulge = 0.42 * (1 - along**2)
        return np.concatenate([np.stack([along, bulge], 1), np.stack([along[::-1], -bulge[::-1]], 1)])
    if shape == "stars":
        angles, reach = np.arange(10) * np.pi / 5, np.where(np.arange(10) % 2, 0.45, 1.15)
    else:
        angles, reach = np.arange(24) * np.pi / 12, np.ones(24)
    return np.stack([np.cos(angles) * reach, np.sin(angles) * reach], axis=1)


class _Tiles(NamedTuple):
    """Textures of mean 0 and deviation 1, float32 [_TILE, _TILE]."""

    fine: Field
    grained: Field  # in one direction, as wood and grass are
    cloud: Field
    white: Field


@cache
def _tiles() -> _Tiles:
    rng = np.random.default_rng([VERSION, 0x71135])
    down, across = np.meshgrid(np.fft.fftfreq(_TILE), np.fft.rfftfreq(_TILE), indexing="ij")
    tiles: list[Field] = []
    for slope, stretch in ((0.7, 1.0), (0.9, 4.0), (1.7, 1.0)):
        radius = np.hypot(down, across * stretch)
        radius[0, 0] = np.inf  # no mean
        spectrum = np.fft.rfft2(rng.standard_normal((_TILE, _TILE))) / radius**slope
        tile = np.fft.irfft2(spectrum, s=(_TILE, _TILE))
        tiles.append((tile / tile.std()).astype(np.float32))
    fine, grained, cloud = tiles
    return _Tiles(fine, grained, cloud, rng.standard_normal((_TILE, _TILE), np.float32))


def _window(rng: np.random.Generator, tile: Field, height: int, width: int) -> Field:
    """A random window of a tile, float32 [height, width], turned and flipped at random."""
    if rng.random() < 0.5:
        tile = tile.T
    top, left = (int(rng.integers(0, _TILE - side + 1)) for side in (height, width))
    window = tile[top : top + height, left : left + width]
    return window[:: int(rng.choice((-1, 1))), :: int(rng.choice((-1, 1)))]
