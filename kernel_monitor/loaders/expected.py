"""What loading is expected to cost with other engines, from the transforms and the size of some images."""

from __future__ import annotations

import numpy as np
from PIL import Image

from .engines.backends import Setting
from .transforms.costs import DALI, ratios

LOOKS = 4
"""Files whose sizes are read, spread over the data set; their headers only."""


def expected(setting: Setting) -> dict[str, dict[str, float]]:
    """CPU time of loading with an engine over that with `torchvision`; only of engines of which it can be told.

    By engine, and by the maker of the processor: which one this is, the sampler knows.

    Nothing is asked of a data set of the user's own, nor of a pipeline of their own.
    """
    source = setting.keyed.source
    if setting.own is not None or setting.program is None or source.obstacle is not None or source.encoded:
        return {}
    count = len(source)
    sizes = []
    with setting.keyed.apart():
        for place in sorted({count * k // LOOKS for k in range(LOOKS)}) if count else []:
            try:
                with Image.open(source.absolute(source.locate(place).path)) as image:
                    sizes.append((image.height, image.width))
            except Exception:  # noqa: BLE001, S112 - the loop names a bad file when it meets it
                continue
    if not sizes:
        return {}
    found = ratios(source.transform, setting.program, np.array(sizes), fused=setting.fused_decode)
    return {DALI: {maker: round(value, 3) for maker, value in found.items()}} if found else {}
