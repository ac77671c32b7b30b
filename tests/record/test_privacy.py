"""Nothing private of a training is in its recording or its report: keys, folders, names of user and host, variables.

A script trains in a home folder, with keys in its environment, its command line, its files' names and the texts of its
exceptions, as clients of stores and services write them.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

USER, HOST = "quentinfable", "gpu-box17"
KEYS = {
    "WANDB_API_KEY": "f00dfeedf00dfeedf00dfeed11112222",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnF/K7MDENGbPx+RfiCY",
    "HF_TOKEN": "hf_" + "AbCdEfGhIjKlMnOpQrSt",
    "STORE_PASSWORD": "correct-horse-battery",
}
ARGUMENT = "argv0123secret4567"
UNKNOWN = "ghp_" + "9z8y7x6w5v" * 3  # in no variable: an exception's own
VARIABLE = "a-value-of-an-ordinary-variable"
SCRIPT = """
import os, platform, sys, time
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

from kernel_monitor import monitor, switchable

KEY, SECRET, TOKEN, PASSWORD, UNKNOWN = sys.argv[2:7]


class Photos(Dataset):
    def __init__(self, root):
        self.files = sorted(Path(root).glob("*.png"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        if index == 3:
            raise OSError(f"403 for {self.files[index]}: wandb said {KEY}, {UNKNOWN}; Authorization: Bearer {TOKEN}")
        if index == 5:
            raise OSError(f"{SECRET} does not match; s3://me:{PASSWORD}@store; {' '.join(sys.argv[:2])}")
        with Image.open(self.files[index]) as image:
            return torch.tensor(list(image.tobytes()))


def pipeline(*args, **kwargs):
    words = " ".join(sys.argv[:2])
    raise RuntimeError(f"licence {KEY} refused on {platform.node()}; password={PASSWORD}; {words} in {Path.cwd()}")


root = Path.home() / "photos" / "Client Contract"
root.mkdir(parents=True)
for number in range(32):
    Image.new("L", (8, 8), number).save(root / f"{number:02}.png")
os.chdir(root)
monitor.start(interval=0.1, record=Path(os.environ["OUT"]))
monitor.configure(http=True)
token = monitor.widget_pages.http["token"]
photos = Photos(root)
loader = switchable(DataLoader(photos, batch_size=4, num_workers=1), name=f"train of {KEY}", on_error="skip")
broken = switchable(DataLoader(ImageFolder(root.parent, ToTensor()), batch_size=4), name="val", dali=pipeline)
for batch in loader:
    monitor.mark(f"batch of {root} with --api-key={KEY}")
end = time.monotonic() + 30
monitor.switch("dali-cpu", loader="val")
while time.monotonic() < end and "failed" not in broken.state()["status"]:
    for batch in broken:
        time.sleep(0.02)
time.sleep(1.2)
monitor.export(Path(os.environ["OUT"]) / "report.html")
monitor.stop()
print(token)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], list[str]]:
    """The texts of recording and report, and what must not be in them."""
    folder = tmp_path_factory.mktemp("private")
    home, out = folder / "home" / USER, folder / "out"
    home.mkdir(parents=True)
    out.mkdir()
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(f"import platform; platform.node = lambda: {HOST!r}")
    script = home / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, **KEYS, "HOME": str(home), "USER": USER, "LOGNAME": USER, "ORDINARY": VARIABLE}
    environment |= {
        "OUT": str(out),
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(Path(__file__).parents[2])]),
    }
    given = [f"--api-key={ARGUMENT}", *KEYS.values(), UNKNOWN]
    done = subprocess.run(
        [sys.executable, str(script), *given], env=environment, capture_output=True, text=True, timeout=120, cwd=home
    )
    assert done.returncode == 0, done.stderr
    texts = {}
    for path in out.iterdir():
        text = path.read_bytes().decode("utf-8", "replace")
        texts[path.suffix] = text + unquote(text) + html.unescape(text) + re.sub(r"\\(?:u002f|/)", "/", text)
    secrets = [*KEYS.values(), ARGUMENT, UNKNOWN, VARIABLE, USER, str(folder), "Client Contract", done.stdout.strip()]
    return texts, [*secrets, HOST, *(name for name in KEYS)]


def test_nothing_private_is_in_the_recording_or_the_report(written: tuple[dict[str, str], list[str]]) -> None:
    texts, secrets = written
    assert {".kmsession", ".html"} <= set(texts)
    found = {(suffix, secret) for suffix, text in texts.items() for secret in secrets if secret in text}
    assert found == set()


@pytest.mark.parametrize("suffix", [".kmsession", ".html"])
def test_what_happened_is_in_both(written: tuple[dict[str, str], list[str]], suffix: str) -> None:
    text = written[0][suffix]
    for words in (
        "train of [hidden]",
        "--api-key=[hidden]",
        "403 for …/03.png: wandb said [hidden]",
        "licence [hidden]",
    ):
        assert words in text or json.dumps(words)[1:-1] in text, words
