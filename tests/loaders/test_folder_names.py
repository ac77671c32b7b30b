"""Names of folders are in no record and no report: unreadable files in a data set, from the loop to the HTML file."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from kernel_monitor import cli
from kernel_monitor.errors import SampleError
from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.loaders.events import listen
from kernel_monitor.record.reader import open_session
from kernel_monitor.runtime import Monitor

from .conftest import switch_to, wait_for

CLIENT = "Mandant"
"""In every folder's name here, and in nothing else."""
folder_names = st.text(
    st.sampled_from(" :;,.'\"\\()[]{}<>|&%#~$`!?*éß名🦊\udce9\n\t-_aZ09"), min_size=1, max_size=10
).map(lambda text: f"{text}{CLIENT}{text}")


def make_set(root: Path) -> Path:
    """Ten images of which three cannot be read, and one that DALI is not given, in folders of two classes."""
    for number in range(10):
        folder = root / f"{CLIENT} {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{number:04d}.jpg"
        Image.new("CMYK" if number == 9 else "RGB", (48, 40), (0, 90, 200, 9)[: 4 if number == 9 else 3]).save(path)
        if number in (2, 5):
            path.write_bytes(b"no image" if number == 2 else path.read_bytes()[:200])
    os.unlink(root / f"{CLIENT} 0" / "0006.jpg")  # noqa: PTH108 - found below, as `samples` was listed before
    return root


def refuse(sample: Any) -> Any:
    raise OSError(f"no table in {sample}")


class Session:
    """A monitor that records, in a folder with a name of its own."""

    def __init__(self, folder: Path) -> None:
        self.monitor = Monitor()
        self.monitor.start(interval=0.05, record=str(folder))
        self.wait()

    def wait(self) -> None:
        """Until some more frames have come, and loaders are followed."""
        seen = self.monitor.store.last_seq
        wait_for(lambda: self.monitor.store.last_seq >= seen + 3)

    def end(self) -> Path:
        self.wait()
        self.monitor.stop()
        return Path(str(self.monitor.recording["path"]))


def train(root: Path) -> tuple[SwitchableLoader, ...]:
    """Both engines over the whole set with what is skipped, an error, and a switch that fails and says the path."""
    dataset = ImageFolder(root, v1.Compose([v1.Resize((32, 32)), v1.ToTensor()]))
    dataset.samples.insert(6, (str(root / f"{CLIENT} 0" / "0006.jpg"), 0))
    loader = switchable(DataLoader(dataset, batch_size=4), name="train", on_error="skip")
    strict = switchable(DataLoader(dataset, batch_size=4), name="strict")
    failing = switchable(
        DataLoader(dataset, batch_size=4), name="failing", dali=lambda sample: refuse(dataset.samples[0][0])
    )
    list(loader)
    switch_to(loader, "dali-cpu")
    list(loader)
    assert loader.fallbacks()
    with pytest.raises(SampleError) as error:
        list(strict)
    assert Path(error.value.path).parent.parent == root
    switch_to(failing, "dali-cpu")
    assert "no table in" in failing.switch_state.status
    return loader, strict, failing


def said(recording: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """All that may be sent to others, by what it is."""
    session = open_session(recording)
    texts = {"record": json.dumps([session.events(), session.loaders, session.facts], ensure_ascii=False)}
    assert cli.main(["report", str(recording), "-o", str(out / "run.html")]) == 0
    assert cli.main(["report", str(recording), "--json", "-o", str(out / "run.json")]) == 0
    capsys.readouterr()
    assert cli.main(["report", str(recording), "--json"]) == 0
    texts["stdout"] = capsys.readouterr().out
    texts["json"] = (out / "run.json").read_text("utf-8")
    texts["html"] = (out / "run.html").read_text("utf-8")
    return texts


def test_no_folder_is_in_recording_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / f"first {CLIENT}" / f"key:{CLIENT}" / f'it\'s "{CLIENT}"' / f"scans {CLIENT} 2024"
    session = Session(tmp_path / f"sessions of {CLIENT}")
    loader, *_ = train(make_set(root))
    skips = loader.state()["skips"]
    assert [skip["path"] for skip in skips] == ["0002.jpg", "0006.jpg", "0005.jpg"]
    assert all(Path(skip.path).is_absolute() for skip in loader.skipped())
    for what, text in said(session.end(), tmp_path, capsys).items():
        assert CLIENT not in text, what
        assert ("no table in …/0000.jpg" in text) == (what in ("record", "html")), what
        assert ("0002.jpg" in text) == (what in ("record", "html")), what


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(folders=st.lists(folder_names, min_size=1, max_size=3))
@example(folders=[f"{CLIENT}\\n", f"'{CLIENT}'\"", f"{CLIENT}é\udce9"])
def test_no_folder_whatever_its_name_is_in_a_state_or_an_event(folders: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = make_set(Path(name, *folders))
        events: list[Any] = []
        unlisten = listen(events.append)
        try:
            loaders = train(root)
            wait_for(lambda: "no table in" in json.dumps(events))  # the status is set a moment before the event
        finally:
            unlisten()
        texts = [json.dumps([one.state() for one in loaders], ensure_ascii=False), json.dumps(events)]
        assert "0002.jpg" in texts[0]
        assert "no table in" in texts[1]
        for text in texts:
            assert CLIENT not in text
