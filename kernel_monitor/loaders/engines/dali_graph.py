"""From a `Program` to a DALI pipeline with explicit parameters: DALI shuffles nothing and draws nothing.

Matching torchvision's pixels (measured with DALI 2.4 and Pillow): linear interpolation with antialiasing, no
sub-pixel scale, explicit target sizes, no EXIF rotation, chroma upsampling like libjpeg's on the GPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Any

from ..transforms.program import CropCenter, CropResize, Mirror, Program, Scale

_LIBRARIES = ("libdali_core.so", "libdali_kernels.so", "libdali.so", "libdali_operators.so")  # each needs those before


def _preload() -> None:
    """Map DALI's libraries (600 MB) without the GIL, which an import would hold while the training loop waits.

    What cannot be mapped here is left to the import, which then says why.
    """
    spec = importlib.util.find_spec("nvidia.dali")
    if spec is None or spec.origin is None:
        return
    # Called as a foreign function, dlopen releases the GIL; ctypes.CDLL(path) does not in every Python.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    for name in _LIBRARIES:
        dlopen(bytes(Path(spec.origin).with_name(name)), os.RTLD_NOW)


def build(program: Program, *, batch_size: int, threads: int, device: int | None) -> Any:
    """Build a pipeline (`nvidia.dali.pipeline.Pipeline`).

    Its inputs are `name` (the bytes of each file's path, uint8) and those of `program.arrays`; its output is
    [n, 3, height, width], float32 or uint8.

    Args:
        program: what to compute.
        batch_size: most samples a run is fed.
        threads: CPU threads.
        device: number of the CUDA device, None for the CPU.
    """
    _preload()
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline

    # Depth 1: how many runs are in flight is the engine's own count, and partial batches are just smaller feeds.
    pipeline = Pipeline(
        batch_size=batch_size, num_threads=threads, device_id=device, prefetch_queue_depth=1, exec_dynamic=True
    )

    def fed(name: str, ndim: int) -> Any:
        return fn.external_source(name=name, dtype=types.INT32, ndim=ndim)

    with pipeline:
        data = fn.io.file.read(fn.external_source(name="name", dtype=types.UINT8, ndim=1))
        body = program.body
        decode = {
            "device": "cpu" if device is None else "mixed",
            "output_type": types.RGB,
            "adjust_orientation": False,
        }
        if device is not None:
            decode["jpeg_fancy_upsampling"] = True
        cropped = bool(body) and isinstance(body[0], CropResize)
        if cropped:  # decodes only the region
            image = fn.decoders.image_slice(
                data,
                fed("start0", 1),
                fed("shape0", 1),
                axis_names="HW",
                normalized_anchor=False,
                normalized_shape=False,
                **decode,
            )
        else:
            image = fn.decoders.image(data, **decode)
        resize = {"interp_type": types.INTERP_LINEAR, "antialias": True, "subpixel_scale": False}
        for k, step in enumerate(body):
            if isinstance(step, CropResize):
                if k or not cropped:
                    image = fn.slice(
                        image,
                        fed(f"start{k}", 1),
                        fed(f"shape{k}", 1),
                        axis_names="HW",
                        normalized_anchor=False,
                        normalized_shape=False,
                    )
                image = fn.resize(image, size=list(step.size), **resize)
            elif isinstance(step, Scale):
                image = fn.resize(image, size=fn.cast(fed(f"size{k}", 1), dtype=types.FLOAT), **resize)
            elif isinstance(step, CropCenter):
                image = fn.slice(
                    image,
                    fed(f"start{k}", 1),
                    list(step.size),
                    axis_names="HW",
                    normalized_anchor=False,
                    normalized_shape=False,
                    out_of_bounds_policy="pad",
                    fill_values=0,
                )
            elif isinstance(step, Mirror):
                image = fn.flip(image, horizontal=fed(f"mirror{k}", 0), vertical=0)
        scaling: dict[str, Any] = {"dtype": types.UINT8, "mean": [0.0] * 3, "std": [1.0] * 3}
        if program.floating:
            # pixel * factor + offset, written as (pixel - mean) / std
            pairs = list(zip(program.factor, program.offset, strict=True))
            scaling = {
                "dtype": types.FLOAT,
                "mean": [-offset / factor for factor, offset in pairs],
                "std": [1 / factor for factor, _ in pairs],
            }
        if program.mirrors:
            scaling["mirror"] = fed("mirror", 0)
        pipeline.set_outputs(fn.crop_mirror_normalize(image, output_layout="CHW", **scaling))
    pipeline.build()
    return pipeline
