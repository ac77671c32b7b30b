"""The text of a case's script, and of the same script on the plain DataLoader; `# %%` begins a notebook's cell."""

from __future__ import annotations

import multiprocessing
import textwrap
from pathlib import Path

from .cases import Case, Setting
from .kinds import KINDS, Kind

FORK = "import multiprocessing\nmultiprocessing.set_start_method('fork')\n"
"""The beginning of scripts whose workers are forked, where that is not Python's own choice: on Linux from 3.14 on."""
HEAD = """\
import glob
import json
import time

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

ROOT = {root!r}
FILES = sorted(glob.glob(ROOT + "/images/*/*.jpg"))


def resized(size):
    return transforms.Compose([transforms.Resize((size, size)), transforms.ToTensor()])

"""

TRAIN = """

def train(clicks={{}}):
    delivered = []
    for number, batch in enumerate(loader):
        images, keys, values = {sample}
        coarse = torch.nn.functional.adaptive_avg_pool2d(images.as_subclass(torch.Tensor), 2).flatten(1)
        delivered.append({{
            "keys": keys, "values": values, "shape": list(images.shape),
            "type": f"{{type(images).__name__}} {{images.dtype}} {{type(batch).__name__}}", "coarse": coarse.tolist(),
        }})
        {inside}
        if number in clicks:
            click(*clicks[number])
    epochs.append(delivered)

"""

CLICK = """
from kernel_monitor import switchable


def click(target, wait=True):
    backend = loader.backends[target]
    if not backend.available:
        grey.append(backend.reason)
        return
    loader.switch(target)
    while wait and loader.switch_state.preparing is not None:
        time.sleep(0.02)

"""

NO_CLICK = """
def click(target, wait=True):
    pass

"""

BODY = """
# %%
print("begins", flush=True)
torch.manual_seed({seed})
epochs, grey = [], []
{make}
loader = DataLoader(dataset, {options})
{wrap}
"""

REPORT = """
# %%
report = {"epochs": epochs}
"""

REPORT_OURS = """
report |= {
    "grey": grey, "backend": loader.backend, "status": loader.switch_state.status,
    "counts": loader.epochs(), "history": [switch._asdict() for switch in loader.history],
    "clicks": [click._asdict() for click in loader.clicks],
}
"""

DALI, TORCHVISION = '"dali-cpu"', '"torchvision"'
BACK = f"click({TORCHVISION})"


def script(case: Case, root: Path) -> str:
    """The script of a case, over the files of `root`."""
    return _script(case.setting, root, *_clicks(case.switch, case.setting.epochs, case.setting.workers), ours=True)


def plain(setting: Setting, root: Path) -> str:
    """The same script without the package; when it switches makes no difference to it."""
    return _script(setting, root, {}, {}, ours=False)


def _clicks(switch: str, epochs: int, workers: int) -> tuple[dict[int, str], dict[int, str]]:
    """Statements before epochs, and what is clicked after which batches of an epoch."""
    back = {epochs - 1: BACK}
    found: dict[str, tuple[dict[int, str], dict[int, str]]] = {
        "none": ({}, {}),
        # Where workers are forked they come first, in the epoch: then nothing is waited for.
        "before": ({0: f"click({DALI}, {not workers})", **back}, {}),
        "between": ({1: f"click({DALI}, False)", **back}, {}),
        "waited": ({1: f"click({DALI})", **back}, {}),
        "middle": (back, {1: f"{{0: ({DALI},)}}"}),
        "twice": ({}, {1: f"{{0: ({DALI},), 3: ({TORCHVISION},)}}"}),
        "late": (back, {1: f"{{4: ({DALI}, False)}}"}),
    }
    return found[switch]


def _script(setting: Setting, root: Path, between: dict[int, str], inside: dict[int, str], *, ours: bool) -> str:
    kind = KINDS[setting.kind]
    options = kind.options
    if setting.workers:
        options += f", num_workers={setting.workers}, prefetch_factor=1, persistent_workers={setting.persistent}"
        options += f", multiprocessing_context={setting.context!r}" if setting.context != "fork" else ""
    wrap = "loader = switchable(loader)" if ours else ""
    body = BODY.format(seed=setting.seed % 2**32, make=kind.make, options=options, wrap=wrap)
    for epoch in range(setting.epochs):
        lines = ["", "# %%", kind.change.format(epoch=epoch), between.get(epoch, ""), f"train({inside.get(epoch, '')})"]
        body += "\n".join(line for line in lines if line) + "\n"
    body += REPORT + (REPORT_OURS if ours else "") + "print(json.dumps(report), flush=True)\n"
    if setting.guarded:
        body = '\nif __name__ == "__main__":\n' + textwrap.indent(body, "    ")
    forks = setting.context == "fork" and multiprocessing.get_all_start_methods()[0] != "fork"
    definitions = (FORK if forks else "") + HEAD.format(root=str(root)) + kind.definitions + _train(kind)
    if setting.guarded:  # such a value is for workers that start in one way
        context = f"multiprocessing.get_context({setting.context!r})"
        definitions = definitions.replace("multiprocessing.Value", f"{context}.Value")
    return definitions + (CLICK if ours else NO_CLICK) + body


def _train(kind: Kind) -> str:
    inside = f"if number == 2:\n            epoch = len(epochs)\n            {kind.inside}" if kind.inside else ""
    text = TRAIN.format(sample=kind.sample, inside=inside)
    return "\n".join(line.rstrip() for line in text.split("\n"))
