"""What a record says of a file: its name and none of its folders, however the path is written in a message.

And of keys: nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from kernel_monitor.errors import MonitorError, SampleError
from kernel_monitor.privacy import HIDDEN, error_text, last_part, private, without_known, without_paths, without_secrets


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("cannot read /data/set/n01/cat.jpg: truncated", "cannot read …/cat.jpg: truncated"),
        ("('/home/me/x.jpg',)", "('~/x.jpg',)"),
        ("in /home/me", "in ~"),
        ("see file:///srv/a/b.png", "see …/b.png"),
        (r"C:\Users\me\x.jpg failed", r"~\x.jpg failed"),
        (r"D:\data\x.jpg", "…/x.jpg"),
        ("412 images/s and 1/2 and </b></i>", "412 images/s and 1/2 and </b></i>"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("/home/first last/data/cat.jpg", "…/cat.jpg"),
        ("/home/first last/cat.jpg", "~/cat.jpg"),
        (
            "cannot read /srv/Client A/scans 2024/cat.jpg: truncated; 412 images/s",
            "cannot read …/cat.jpg: truncated; 412 images/s",
        ),
        ("key:/srv/private/x", "key:…/x"),
        ("KeyError: '/srv/Client A/scans: 2024/x y.jpg' at 12 images/s", "KeyError: '…/x y.jpg' at 12 images/s"),
        ("'/home/o'brien/x.jpg' is bad", "'~/x.jpg' is bad"),
        ("/home/o'brien/data/x.jpg is bad", "…/x.jpg is bad"),
        ("""No such file: '/srv/it\\'s "new"/x.jpg'""", "No such file: '…/x.jpg'"),
        ("copied /srv/a/b to /srv/c/d today", "copied …/b to …/d today"),
        ("/opt/x y/a.so: undefined symbol; see https://host/x/y", "…/a.so: undefined symbol; see https://host/x/y"),
        (r"\\server\share A\x.jpg is gone", "…/x.jpg is gone"),
        (r"C:\Client A\scans 2024\x.jpg, twice", "…/x.jpg, twice"),
        ("../Client A/x.jpg", "…/x.jpg"),
        ("~bob/secret/x.jpg", "…/x.jpg"),
        ("…/cat.jpg and ~/x.jpg", "…/cat.jpg and ~/x.jpg"),
    ],
)
def test_what_looks_like_a_path_is_cut_to_its_last_part(text: str, left: str) -> None:
    assert without_paths(text) == left
    assert private(text) == left
    assert without_paths(left) == left


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/home/first last/data/cat.jpg", "cat.jpg"),
        ("Client A/scans 2024/cat.jpg", "cat.jpg"),
        (r"C:\Client A\cat.jpg", "cat.jpg"),
        ("cat.jpg", "cat.jpg"),
        ("Birds[5]", "Birds[5]"),
    ],
)
def test_the_last_part_of_a_path(path: str, last: str) -> None:
    assert last_part(path) == last


CLIENT = "Mandant"
"""Stands in every folder name that is made up here, and in nothing else."""
names = st.text(
    st.sampled_from(" :;,.'\"\\()[]{}<>|&%#~$`!?*éß名🦊\udce9\n\t-_aZ09") | st.characters(exclude_characters="/\0"),
    max_size=12,
).map(lambda text: f"{text}{CLIENT}{text[::-1]}")


def messages(path: str) -> list[str]:
    """What is said of a file that cannot be read: by the system, by Pillow, quoted, in a list, by hand."""
    said = []
    for attempt in (open, Image.open, os.scandir):
        try:
            attempt(path)
        except OSError as error:
            said += [str(error), repr(error), repr([str(error)])]
    return [
        *said,
        path,
        repr(path),
        ascii(path),
        json.dumps([path]),
        f"key:{path}",
        f"{path}: truncated",
        str(Path(path)),
    ]


@settings(max_examples=60, deadline=None)
@given(folders=st.lists(names, min_size=1, max_size=3))
@example(folders=[f"first {CLIENT}", "data"])
@example(folders=[f"{CLIENT} A", f"scans {CLIENT}"])
def test_a_known_path_is_reduced_in_every_spelling(folders: list[str]) -> None:
    try:
        os.fsencode("/".join(folders))
    except UnicodeEncodeError:
        return  # no file can be called so
    with tempfile.TemporaryDirectory() as root:
        path = "/".join([root, *folders, "cat.jpg"])
        for message in messages(path):
            left = without_known(message, path)
            assert CLIENT not in left, message
            assert "cat.jpg" in left or "cat.jpg" not in message


def test_an_error_tells_no_folder_of_the_files_that_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / f"{CLIENT} A" / f"scans: {CLIENT}" / "cat.jpg"
    with pytest.raises(FileNotFoundError) as missing:
        file.read_bytes()
    unread = SampleError(f"sample 5, {file}: {missing.value}", path=str(file), index=5)
    assert error_text(unread) == "sample 5, …/cat.jpg: [Errno 2] No such file or directory: '…/cat.jpg'"
    wrapped = RuntimeError(f"stopped at {file}")
    wrapped.__cause__ = missing.value
    assert error_text(wrapped) == "stopped at …/cat.jpg"
    failed = MonitorError(f"dali-cpu fails on {file} and in {file.parent}")
    failed.paths = (str(file),)
    assert error_text(failed) == "dali-cpu fails on …/cat.jpg and in …"
    home = tmp_path / f"first {CLIENT}"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    assert error_text(OSError(f"no {home}/x y, no {home}, no {Path.cwd()}")) == "no ~/x y, no ~, no …"


# -- keys -------------------------------------------------------------------------------------------------------------

KEY = "0123456789abcdef" * 2
MARKED = ["hf_" + KEY, "sk-" + KEY, "ghp_" + KEY, "AKIA" + "0" * 16, f"eyJ{KEY}.eyJ{KEY}.{KEY}"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("train.py --api-key hunterhunter2 --lr 0.1", f"train.py --api-key {HIDDEN} --lr 0.1"),
        ("train.py --token=hunterhunter", f"train.py --token={HIDDEN}"),
        ("{'secret_access_key': 'ab/cd+12'}", f"{{'secret_access_key': '{HIDDEN}'}}"),
        ("HTTP 401: Authorization: Bearer abcdefgh", f"HTTP 401: Authorization: Bearer {HIDDEN}"),
        ("cannot reach s3://me:hunter2@store/x.jpg", f"cannot reach s3://{HIDDEN}@store/x.jpg"),
        ("https://store/x.jpg?token=abcdefgh&size=3", f"https://store/x.jpg?token={HIDDEN}&size=3"),
        *((f"no such key: {key}.", f"no such key: {HIDDEN}.") for key in MARKED[:3]),
        *((f"denied ({key})", f"denied ({HIDDEN})") for key in MARKED[3:]),
        ("Unexpected token: in JSON", "Unexpected token: in JSON"),
        ("tokenizer=bert-base-uncased, tokens=512000", "tokenizer=bert-base-uncased, tokens=512000"),
        ("KeyError: 'photo_0815'; key photo_0815.tif", "KeyError: 'photo_0815'; key photo_0815.tif"),
        ("412 images/s, dali-cpu since batch 12", "412 images/s, dali-cpu since batch 12"),
    ],
)
def test_a_key_in_a_text_is_hidden(text: str, left: str) -> None:
    assert private(text) == left
    assert private(left) == left


def test_the_environments_keys_are_hidden_and_its_other_values_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("STORE_PASSWORD", "torchvision")  # a word that stands everywhere
    monkeypatch.setenv("SOME_SECRET_FILE", tempfile.gettempdir())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ab/cd+ef/0123456")
    assert error_text(ValueError(f"no run for {KEY}")) == f"no run for {HIDDEN}"
    assert private("GET /?s=ab%2Fcd%2Bef%2F0123456, ab/cd+ef/0123456") == f"GET /?s={HIDDEN}, {HIDDEN}"
    assert private(f"torchvision, in {tempfile.gettempdir()}/x/y") == "torchvision, in …/y"


@pytest.mark.parametrize("part", ["a", "1", "token_", "-eyJ", "://", "--", "api_key:", "token= ", "eyJaaaaaaaa.", "a-"])
def test_a_megabyte_is_searched_in_time(part: str) -> None:
    began = time.process_time()
    without_secrets(part * (1_000_000 // len(part)))
    assert time.process_time() - began < 5
