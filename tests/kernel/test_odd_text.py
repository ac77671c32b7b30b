"""Text that cannot be encoded, or would steer what shows it: no request of a page stays without an answer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ..loaders.conftest import make_folder
from .kernels import KERNELS, Page, kernel
from .test_recording import said

LOADER = """
import os
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from kernel_monitor import switchable
data = ImageFolder({root!r}, transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()]))
loader = switchable(DataLoader(data, batch_size=4), name="train\\u202e" + "x" * 100_000, on_error="skip")
for _ in loader:
    pass
strict = switchable(DataLoader(data, batch_size=4), name="strict")
"""


def as_a_browser(page: Page) -> None:
    """A browser's JSON is ASCII where a character is half."""
    page.client.session.pack = lambda content: json.dumps(content, default=str).encode("ascii")


def answered(page: Page, command: str, **args: Any) -> dict[str, Any]:
    content: dict[str, Any] = page.request(command, args, timeout=10)["content"]
    return content


def test_half_a_character_in_a_mark_is_refused_and_the_page_goes_on(page: Page) -> None:
    as_a_browser(page)
    for half in ("loss \ud800", "loss \udcff"):
        refused = answered(page, "mark", label=half)
        assert (refused["status"], refused["error"]) == ("error", "_BadRequest")
        assert "mark: label has half a character" in refused["message"]
        page.run(
            "from kernel_monitor import monitor\n"
            "from kernel_monitor.errors import MonitorError\n"
            f"try:\n    monitor.mark({half!r})\nexcept MonitorError as error:\n    said = str(error)\n"
        )
        assert "A mark has half a character" in page.value("said")
    page.run("monitor.live_session.add_event('odd', 1.0, words='old \\ud800 \\udcff')")  # from wherever it may come
    for command, args in (("subscribe", {"client": "one"}), ("history", {})):
        reply = answered(page, command, **args)
        assert reply["status"] == "ok"
        assert [event["words"] for event in reply["events"] if event["kind"] == "odd"] == ["old \\ud800 \\xff"]
    assert page.frames(1.0)
    assert answered(page, "mark", label="sound")["status"] == "ok"


@pytest.mark.parametrize("name", KERNELS[:1])
def test_files_whose_names_are_no_utf_8_and_endless_names_are_shown(name: str, tmp_path: Path) -> None:
    root = make_folder(tmp_path / "images", 8)
    bad = os.fsencode(root) + b"/class_0/caf\xe9\x1b[2J.jpg"
    Path(os.fsdecode(bad)).write_bytes(b"no image")
    with kernel(name) as page:
        as_a_browser(page)
        page.run("%load_ext kernel_monitor\n%monitor start")
        page.rows()
        page.run(LOADER.format(root=str(root)))
        told = answered(page, "subscribe", client="one")
        assert told["status"] == "ok"
        first, _ = told["loaders"]
        assert first["name"].startswith("train\\u202exxx")
        assert len(first["name"]) == 80
        (skip,) = first["skips"]
        assert skip["path"].endswith("caf\\xe9\\x1b[2J.jpg")
        frames = page.frames(1.0)
        assert frames
        states = [frame["content"]["loaders"] for frame in frames if "loaders" in frame["content"]]
        assert states[-1][0]["skips"] == [skip]
        assert "train\\u202exxx" in said(page, "%monitor status")
        # The error that ends a loop is shown by Jupyter itself.
        reply = page.client.execute_interactive("for _ in strict: pass", timeout=60, output_hook=lambda _m: None)
        assert reply["content"]["ename"] == "SampleError"
        assert "caf\\xe9\\x1b[2J.jpg" in reply["content"]["evalue"]
        exported = page.request("export", timeout=60)
        assert exported["content"]["status"] == "ok", exported["content"]
        assert b"\xe2\x80\xae" not in bytes(exported["buffers"][0])
        for choice in ("loader-1", first["name"]):
            reply = answered(page, "switch", loader=choice, backend="torchvision")
            assert reply["status"] == "ok", reply
        refused = answered(page, "switch", loader="train\u202e" + "x" * 100_000, backend="torchvision")
        assert refused["message"] == "switch: loader is no text of 1 to 200 letters."
