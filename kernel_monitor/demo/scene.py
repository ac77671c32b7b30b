"""One demo picture: painted, lit, grained and compressed so that it decodes like a photograph.

A picture is a *dead leaves* scene (Matheron; Lee, Mumford and Huang, "Occlusion models for natural images", 2001):
shapes of power-law sizes that occlude each other, which gives the 1/f spectrum and the hard edges of photographs.
On it come textures with their own spectra, uneven light, depth of field and sensor noise. Deterministic:
the pixels are a function of (seed, index, label) alone, whichever process draws them.
"""

from __future__ import annotations

import colorsys
import io
from bisect import bisect_left
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

VERSION = 1  # grows when the same (seed, index, label) no longer gives the same file

SMALLEST, LARGEST = 112_640, 150_000
"""Bounds of a file's size in bytes (110 KiB, 150 kB: inside the promised range however a kilobyte is counted)."""

_HUES = ("red", "orange", "yellow", "lime", "green", "jade", "cyan", "azure", "blue", "violet", "magenta", "rose")
_SHAPES = ("discs", "leaves", "blocks", "shards", "stars")
MOST_CLASSES = len(_HUES) * len(_SHAPES)

_Field = npt.NDArray[np.float32]
_TILE = 1024  # side of a texture tile in pixels; crops of it, flipped and transposed, rarely look alike
_ASPECTS = (4 / 3, 3 / 2, 5 / 4, 1.0)
_QUALITIES = range(84, 99)  # what cameras and photo sites write


def class_name(label: int) -> str:
    """Return the folder's name of class `label` (0 to MOST_CLASSES - 1), e.g. `red-discs`: what a person sees in it."""
    return f"{_HUES[label % len(_HUES)]}-{_SHAPES[label % len(_SHAPES)]}"


def jpeg(seed: int, index: int, label: int) -> bytes:
    """Return picture number `index` of a set, of class `label`, as a JPEG file.

    Long side 400 to 600 pixels, landscape or portrait, SMALLEST to LARGEST bytes, 4:4:4 or 4:2:0 chroma. A RuntimeError
    if no quality brings the file into these bounds.
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
            pixels = pixels + 3 * rng.standard_normal((height, width, 3), np.float32).transpose(2, 0, 1)
        else:  # too fine a scene: a softer lens
            pixels = _planes(_image(pixels).filter(ImageFilter.GaussianBlur(0.6)))
    raise RuntimeError(f"picture {index} (seed {seed}, class {label}) does not compress to {SMALLEST}-{LARGEST} bytes")


def _compress(pixels: _Field, wanted: float, subsampling: int) -> bytes:
    """Return the JPEG nearest to `wanted` bytes, one within the bounds before all others. Size grows with quality."""
    picture = _image(pixels)

    @cache
    def saved(quality: int) -> bytes:
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=quality, subsampling=subsampling)
        return buffer.getvalue()

    place = bisect_left(_QUALITIES, wanted, key=lambda quality: len(saved(quality)))
    nearest = [saved(quality) for quality in _QUALITIES[max(place - 1, 0) : place + 1]]
    return min(nearest, key=lambda data: (not SMALLEST <= len(data) <= LARGEST, abs(len(data) - wanted)))


def _image(pixels: _Field) -> Image.Image:
    planes = np.clip(pixels + 0.5, 0, 255).astype(np.uint8)
    return Image.merge("RGB", [Image.fromarray(plane) for plane in planes])


def _planes(image: Image.Image) -> _Field:
    """Return the bands of an image, float32 [bands, height, width]: arithmetic is much faster on whole planes."""
    return np.asarray(image).transpose(2, 0, 1).astype(np.float32, order="C")


def _paint(rng: np.random.Generator, width: int, height: int, label: int) -> _Field:
    """Return the scene, float32 [3, height, width], about 0 to 255."""
    hue = (label % len(_HUES)) / len(_HUES)
    canvas = (2 * width, 2 * height)  # painted at twice the size: shrinking makes edges as soft as a lens does

    # a surface has a colour, and in the four bands of the other image three textures and what belongs to the front
    back, back_surfaces = Image.new("RGB", canvas), Image.new("CMYK", canvas)
    _scatter(rng, back, back_surfaces, "blocks" if rng.random() < 0.5 else "discs", 160, None)
    front, front_surfaces = back.copy(), back_surfaces.copy()
    _scatter(rng, front, front_surfaces, _SHAPES[label % len(_SHAPES)], int(rng.integers(120, 260)), hue)

    *strengths, share = _planes(front_surfaces.reduce(2))
    scene = _textured(rng, _planes(front.reduce(2)), strengths)
    blur = float(rng.choice((0.0, 1.5, 4.0)))
    if blur:  # depth of field: the background is out of focus
        behind = _image(_textured(rng, _planes(back.reduce(2)), _planes(back_surfaces.reduce(2))[:3]))
        blurred = _planes(behind.filter(ImageFilter.GaussianBlur(blur)))
        share /= 255
        scene -= blurred
        scene *= share
        scene += blurred

    light = 1 + 0.25 * _window(rng, _tiles().cloud, height, width)
    scene *= np.clip(light, 0.3, 1.8)
    # shot noise grows with the square root of the light; cameras suppress its colour more than its brightness
    noise = np.clip(scene, 0, 255)
    noise /= 255
    noise += np.float32(0.05)
    np.sqrt(noise, out=noise)
    noise *= np.float32(rng.uniform(1.0, 2.6))
    grey, *tints = (_window(rng, _tiles().white, height, width) for _ in range(4))
    grey = 0.9 * grey
    for k, tint in enumerate(tints):
        scene[k] += noise[k] * (grey + 0.45 * tint)
    return scene


def _textured(rng: np.random.Generator, pixels: _Field, strengths: Iterable[_Field]) -> _Field:
    """Multiply colours, float32 [3, height, width], by textures; a strength for each texture, 255 for one half."""
    _, height, width = pixels.shape
    fine, grained, cloud = (
        _window(rng, tile, height, width) * (strength * np.float32(0.5 / 255))
        for tile, strength in zip((_tiles().fine, _tiles().grained, _tiles().cloud), strengths, strict=True)
    )
    pixels *= 1 + fine + grained + cloud
    pixels[0] += 6 * fine  # a texture in nature is never quite grey
    pixels[2] += 6 * (cloud - grained)
    return pixels


def _scatter(
    rng: np.random.Generator, colours: Image.Image, surfaces: Image.Image, shape: str, count: int, hue: float | None
) -> None:
    """Draw `count` shapes, from far to near, on both canvases; without a hue in dull colours of any hue, behind all.

    `surfaces` has a band per texture, and one that is 255 where a shape of a hue lies.
    """
    width, height = colours.size
    side = (width * height) ** 0.5
    if hue is None:
        ground = _colour(rng, None)
        colours.paste(ground, (0, 0, width, height))
        surfaces.paste((*_strengths(rng), 0), (0, 0, width, height))
    paint, mark = ImageDraw.Draw(colours), ImageDraw.Draw(surfaces)
    # density of radii r^-3 between two bounds: scale invariance, hence the 1/f spectrum
    smallest, largest = (0.012, 0.35) if hue is None else (0.014, 0.22)
    radii = side / np.sqrt(rng.uniform(1 / largest**2, 1 / smallest**2, count))
    centres = rng.uniform(0, 1, (count, 2)) * (width, height)
    turns = rng.uniform(0, 2 * np.pi, count)
    squeezes = rng.uniform(0.75, 1.0, count)
    cos, sin = np.cos(turns) * radii, np.sin(turns) * radii
    bases = np.stack([np.stack([cos, sin], -1), np.stack([-sin * squeezes, cos * squeezes], -1)], 1)
    for corners in (_outline(shape) @ bases + centres[:, None, :]).reshape(count, -1).tolist():
        paint.polygon(corners, fill=_colour(rng, hue))
        mark.polygon(corners, fill=(*_strengths(rng), 0 if hue is None else 255))


def _colour(rng: np.random.Generator, hue: float | None) -> tuple[int, int, int]:
    """Return a surface's colour: near `hue` for the picture's subject, dull and of any hue for its surroundings."""
    if hue is None:
        parts = colorsys.hsv_to_rgb(rng.random(), rng.uniform(0, 0.3), rng.uniform(0.15, 0.9))
    else:
        parts = colorsys.hsv_to_rgb((hue + rng.normal(0, 0.02)) % 1, rng.uniform(0.3, 0.85), rng.uniform(0.25, 0.95))
    red, green, blue = (round(255 * part) for part in parts)
    return red, green, blue


def _strengths(rng: np.random.Generator) -> tuple[int, int, int]:
    """Return how strongly each of the three textures shows on a surface: mostly faint, now and then marked."""
    fine, grain, cloud = (int(255 * x) for x in rng.beta(1.2, 4.0, 3).tolist())
    return fine, grain, cloud


@cache
def _outline(shape: str) -> npt.NDArray[np.float64]:
    """Return the corners of a shape of radius one, float64 [n, 2]."""
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
    """Textures of mean 0 and deviation 1, float32 [2, _TILE, _TILE]: each as it is, and turned about its diagonal."""

    fine: _Field
    grained: _Field  # in one direction, as wood and grass are
    cloud: _Field
    white: _Field


@cache
def _tiles() -> _Tiles:
    rng = np.random.default_rng([VERSION, 0x71135])
    down, across = np.meshgrid(np.fft.fftfreq(_TILE), np.fft.rfftfreq(_TILE), indexing="ij")
    tiles: list[_Field] = []

    def both(tile: _Field) -> _Field:
        return np.stack([tile, tile.T])  # a turned one that lies in memory as the pictures do is read in half the time

    for slope, segment in ((0.7, 1.0), (0.9, 4.0), (1.7, 1.0)):
        radius = np.hypot(down, across * segment)
        radius[0, 0] = np.inf  # no mean
        spectrum = np.fft.rfft2(rng.standard_normal((_TILE, _TILE))) / radius**slope
        tile = np.fft.irfft2(spectrum, s=(_TILE, _TILE))
        tiles.append(both((tile / tile.std()).astype(np.float32)))
    fine, grained, cloud = tiles
    return _Tiles(fine, grained, cloud, both(rng.standard_normal((_TILE, _TILE), np.float32)))


def _window(rng: np.random.Generator, tile: _Field, height: int, width: int) -> _Field:
    """Return a random window of a tile, float32 [height, width], turned and flipped at random. Not to be written to."""
    turned = int(rng.random() < 0.5)
    top, left = (int(rng.integers(0, _TILE - side + 1)) for side in (height, width))
    window = tile[turned, top : top + height, left : left + width]
    down, across = (2 * int(rng.integers(0, 2)) - 1 for _ in range(2))
    return window[::down, ::across]
