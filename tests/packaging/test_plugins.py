"""Each optional package can be deleted: the quickstart runs to its end without it, and what is missing says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_monitor.demo import demo_data
from kernel_monitor.plugins import PLUGINS

ROOT = Path(__file__).parents[2]
QUICKSTART = '''
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()


def cell(source):
    shell.run_cell(source).raise_error()


cell("%load_ext kernel_monitor")
cell("%monitor start")
cell("""
import time

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import kernel_monitor
from kernel_monitor import control, monitor, switchable
from kernel_monitor.demo import demo_data
from kernel_monitor.errors import MonitorError

torch.manual_seed(0)
root = demo_data("demo", images=96, classes=3, progress=False)
transform = v2.Compose([
    v2.RandomResizedCrop(64, antialias=True), v2.RandomHorizontalFlip(), v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean=[0.5] * 3, std=[0.5] * 3),
])
loader = switchable(DataLoader(ImageFolder(root, transform), batch_size=8, shuffle=True, num_workers=1), name="train")
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
monitor.watch(model, optimizer)


def epoch():
    seen = 0
    for images, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        seen += len(labels)
    return seen


counts = [epoch()]
""")
cell("%monitor switch dali-cpu")
cell("""
until = time.monotonic() + 120
while not loader.history and time.monotonic() < until:
    counts.append(epoch())
counts.append(epoch())
state = loader.state()
print("quickstart:", kernel_monitor.__file__)
print("epochs:", set(counts), "engine:", loader.backend, "lost:", state["lost"], "doubled:", state["doubled"])
""")
for command in ("status", "verdict", "help", "export run.html"):
    shell.run_cell(f"%monitor {command}")
cell("%monitor stop")
for call in sys.argv[1:]:
    try:
        if call.startswith("%monitor "):
            shell.run_line_magic("monitor", call.removeprefix("%monitor "))
        else:
            exec(call, shell.user_ns)
        print(f"{call}: nothing was raised")
    except Exception as error:
        print(f"{call}: {type(error).__name__}: {error}")
cell("%unload_ext kernel_monitor")
print("report:", Path("run.html").stat().st_size > 100_000)
'''
REQUEST = (
    "control.Control(monitor).handle({{'protocol': control.PROTOCOL, 'command': '{0}'}}, lambda reply, _: print(reply))"
)
CALLS = {
    "profiler": ["%monitor profile 5", "monitor.profile(5)", REQUEST.format("profile")],
    "ranks": [
        "%monitor join",
        "monitor.configure(ranks='tcp://127.0.0.1:0')",
    ],
    "ray": ["monitor.configure(ray='auto')"],
    "sweeps": ["kernel_monitor.sweep", "from kernel_monitor import sweep"],
}
COMMANDS = {"profiler": [], "ranks": [["run", "--", "true"], ["switch"]], "ray": [], "sweeps": [["sweep", "workers"]]}
SENTENCES = {name: f"{words} not part of this installation" for name, words in PLUGINS.items()} | {
    "ray": "ray= and send_files= are settings of the engine ray, which is not installed"
}
MAGICS = {
    "profiler": ["%monitor profile [N]"],
    "ranks": ["what to set so that ranks started elsewhere"],
}
INSTALLED = [name for name in PLUGINS if (ROOT / "kernel_monitor" / name).is_dir()]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo set of the quickstart, made once."""
    return demo_data(tmp_path_factory.mktemp("photos") / "demo", images=96, classes=3, progress=False)


@pytest.fixture
def folder(tmp_path: Path, photos: Path) -> Path:
    """A folder with a copy of the package and the demo set."""
    # With what is compiled: where PYTHONDONTWRITEBYTECODE is set each process would compile it again.
    shutil.copytree(ROOT / "kernel_monitor", tmp_path / "kernel_monitor", ignore=shutil.ignore_patterns("labextension"))
    shutil.copytree(photos, tmp_path / photos.name)
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with the copy of the package that lies there."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "KERNEL_MONITOR_SESSIONS": str(folder / "sessions")}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )


@pytest.mark.parametrize("name", INSTALLED)
def test_without_an_optional_package_everything_else_works_and_the_missing_part_says_so(
    folder: Path, name: str
) -> None:
    shutil.rmtree(folder / "kernel_monitor" / name)
    (folder / "quickstart.py").write_text(QUICKSTART, "utf-8")
    calls = CALLS[name]
    done = run(folder, "quickstart.py", *calls)
    said = done.stdout
    assert done.returncode == 0, f"{said[-3000:]}\n{done.stderr[-3000:]}"
    assert f"quickstart: {folder}/kernel_monitor/__init__.py" in said
    assert "epochs: {96} engine: dali-cpu lost: 0 doubled: 0" in said
    assert "train: " in said
    assert "report: True" in said
    assert "wrote " in said
    assert not {"AttributeError", "Traceback"} & {word.strip(":") for word in said.split()}, said
    assert done.stderr == ""
    sentence = SENTENCES[name]
    assert said.count(sentence) >= len(calls), said
    help_text = run(folder, "-m", "kernel_monitor", "--help").stdout
    assert "demo-data" in help_text
    for words in COMMANDS[name]:
        refused = run(folder, "-m", "kernel_monitor", *words)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"kernel-monitor: {sentence}")
        assert refused.stderr.count("\n") == 1
        assert f"    {words[0]} " not in help_text
    for package, magics in MAGICS.items():
        assert all((words in said) == (package != name) for words in magics), said


def test_with_all_packages_their_commands_are_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kernel_monitor", "--help"], capture_output=True, text=True, timeout=60
    )
    assert all(f"    {words[0]} " in done.stdout for commands in COMMANDS.values() for words in commands)
