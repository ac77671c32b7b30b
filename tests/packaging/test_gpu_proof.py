"""`make gpu` without a GPU, and the kit: cut into parts, checked, joined; no download."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import processes, promises
from benchmarks.gpu.__main__ import folder
from benchmarks.gpu.__main__ import run as run_part
from benchmarks.gpu.parts import PARTS, Part, fingerprint
from benchmarks.gpu.results import MET, MISSED, NOT_RUN, STOPPED, Results
from benchmarks.gpu.rows import off, parse
from benchmarks.gpu_kit import __main__ as kit_maker
from benchmarks.gpu_kit import install
from benchmarks.gpu_kit.archive import pack, write_sums
from benchmarks.gpu_kit.install import Refused

ROOT = Path(__file__).parents[2]
LIMIT = 50_000
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"

# -- the kit ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A kit of three files, one larger than a part."""
    source, out = tmp_path / "source", tmp_path / "the kit"
    source.mkdir()
    out.mkdir()
    contents = {
        "wheels/large.whl": os.urandom(3 * LIMIT),
        "wheels/empty.whl": b"",
        "proof/tests/test_it.py": b"x = 1\n",
    }
    members = {}
    for number, (name, content) in enumerate(contents.items()):
        members[name] = source / str(number)
        members[name].write_bytes(content)
    parts = pack(members, out, LIMIT)
    assert len(parts) >= 4
    assert all(part.stat().st_size <= LIMIT for part in parts)
    (out / "manifest.json").write_text(json.dumps(manifest()), "utf-8")
    write_sums(out, [*parts, out / "manifest.json"])
    return out


def manifest(**changed: Any) -> dict[str, Any]:
    return {"python": HERE, "platform": kit_maker.PLATFORM, "needs": {"torch": "2.6"}, "requirements": [], **changed}


def test_parts_are_joined_to_what_was_packed(kit: Path, tmp_path: Path) -> None:
    joined = tmp_path / "joined"
    install.unpack(install.check_files(kit), joined)
    found = sorted(str(path.relative_to(joined)) for path in joined.rglob("*") if path.is_file())
    assert found == ["proof/tests/test_it.py", "wheels/empty.whl", "wheels/large.whl"]
    large = (tmp_path / "source" / "0").read_bytes()
    assert hashlib.sha256((joined / "wheels/large.whl").read_bytes()).digest() == hashlib.sha256(large).digest()


def test_the_checksums_are_those_of_sha256sum(kit: Path) -> None:
    done = subprocess.run(["sha256sum", "--check", "--strict", install.SUMS], cwd=kit, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "words"), [(damage, "Damaged: gpu-kit.tar.001."), (Path.unlink, "Not here: gpu-kit.tar.001.")]
)
def test_a_part_that_is_damaged_or_missing_is_refused(kit: Path, harm: Callable[[Path], None], words: str) -> None:
    harm(kit / "gpu-kit.tar.001")
    with pytest.raises(Refused, match=re.escape(words)):
        install.main(kit, kit / "proof")
    assert not (kit / "proof").exists()


def test_the_proof_of_an_earlier_kit_is_replaced_and_its_results_stay(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for path in (source / "tests/new.py", target / "tests/old.py", target / "docs/results/README.md"):
        path.parent.mkdir(parents=True)
        path.touch()
    install.replace(source, target)
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert found == ["docs/results/README.md", "tests/new.py"]


def test_a_new_kit_takes_the_place_of_the_old_one_and_of_nothing_else(kit: Path) -> None:
    result = kit / "gpu-proof/docs/results/README.md"
    result.parent.mkdir(parents=True)
    result.touch()
    kit_maker.fresh(kit)
    assert [path for path in kit.rglob("*") if path.is_file()] == [result]
    (kit / "theirs.txt").touch()
    with pytest.raises(SystemExit, match=r"holds theirs\.txt"):
        kit_maker.fresh(kit)


def test_a_folder_of_something_else_is_left_alone(kit: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "project/tests/test_theirs.py"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    with pytest.raises(Refused, match="holds something else"):
        install.main(kit, tmp_path / "project")
    assert theirs.exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"python": "3.99"}, f"for Python 3.99; {sys.executable} is Python {HERE}"),
        ({"platform": "linux riscv64"}, "for linux riscv64"),
        ({"needs": {"no-such-package": "1"}}, "has no no-such-package, which the kit does not bring"),
        ({"needs": {"torch": "99.0"}}, "is too old; 99.0 or newer is needed"),
    ],
)
def test_another_python_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=re.escape(words)):
        install.check_python(manifest(**changed))


def test_the_script_refuses_what_is_no_python(kit: Path) -> None:
    script = ROOT / "benchmarks/gpu_kit/install"
    done = subprocess.run(["sh", str(script), str(kit / "no-python")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Name a Python that has torch" in done.stderr


def test_versions_are_compared_by_their_numbers() -> None:
    assert install.release("2.11.0+cu130") > install.release("2.6")


def test_the_kit_brings_all_but_torch() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    names = {kit_maker.named(text) for text in kit_maker.needed(settings["project"])}
    assert {"bokeh", "anywidget", "cloudpickle", "nvidia-dali-cuda120", "numpy"} <= names
    assert not names & {"torch", "torchvision"}
    assert {name for name in kit_maker.proof() if name.startswith("proof/tests/gpu/test_")}


# -- the run ----------------------------------------------------------------------------------------------------------


def test_without_a_gpu_it_says_so_and_what_was_not_run(tmp_path: Path) -> None:
    """On any machine: NVML is the stand-in, and says that there is no driver."""
    on_gpu = [part.name for part in PARTS if "GPU" in part.needs]
    assert on_gpu == ["tests", "parity", "rows", "loaders", "swap", "sweep", "case-study"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path), "--parts", *on_gpu],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks/nvml"), str(ROOT)]),
            "KERNEL_MONITOR_FAKE_NVML": json.dumps({"init_error": "NVML_ERROR_DRIVER_NOT_LOADED"}),
        },
    )  # fmt: skip
    assert done.returncode == 3, done.stdout + done.stderr
    assert "no GPU here: NVML finds no GPU: Driver Not Loaded" in done.stdout
    for name in on_gpu:
        assert re.search(rf"^{name}: not run: ", done.stdout, re.MULTILINE), done.stdout
    page = (tmp_path / "README.md").read_text("utf-8")
    assert page.count("not run: NVML finds no GPU") == len(on_gpu)
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == len(PARTS)
    assert max(len(cell) for row in rows for cell in row.split(" | ")) <= 120, "as in every page of the documents"
    assert "undecided" in page
    assert "confirmed" not in page


def test_results_are_named_after_gpu_and_day() -> None:
    def place(gpu: str, **lacking: str) -> str:
        checks = {"found": {"GPU": gpu}, "lacking": lacking}
        return str(folder(checks, "2026-01-31").relative_to(ROOT))

    assert place("1 × NVIDIA H100 80GB HBM3") == "docs/results/H100-80GB-HBM3-2026-01-31"
    assert place("8 × NVIDIA A100-SXM4-40GB") == "docs/results/8x-A100-SXM4-40GB-2026-01-31"
    assert place("1 × NVIDIA H200", CUDA="torch has none") == "build/no-gpu-2026-01-31"


CHECKS: dict[str, Any] = {"found": {"torch": "1"}, "lacking": {}, "machine": "a machine"}
WRITES = """
import json, sys
from pathlib import Path
runs = Path(sys.argv[1])
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
Path(sys.argv[-1]).write_text(json.dumps({"bars": [], "counts": {"things": 1}}))
sys.exit(int(sys.argv[2]))
"""


def part(tmp_path: Path, code: str = WRITES, status: int = 0, limit_s: float = 60.0) -> Part:
    source = tmp_path / "source.py"
    source.touch()
    command = ("-c", code, str(tmp_path / "runs"), str(status))
    return Part("rows", "a part", command, limit_s, needs=(), sources=(str(source),))


def play(folder: Path, one: Part, checks: dict[str, Any] = CHECKS, *, again: bool = False) -> Results:
    """Run a part as a new process of `benchmarks.gpu` would."""
    now = dict.fromkeys((other.name for other in PARTS), "") | {one.name: fingerprint(one, checks)}
    results = Results(folder, now)
    run_part(one, checks, results, again=again)
    return Results(folder, now)


def test_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    play(tmp_path, part(tmp_path))
    results = play(tmp_path, part(tmp_path))
    assert (runs.read_text(), results.record(part(tmp_path)).result) == ("x", MET)
    assert results.figures()["rows"]["counts"] == {"things": 1}
    (tmp_path / "source.py").write_text("x = 2\n")
    results.fingerprints["rows"] = fingerprint(part(tmp_path), CHECKS)
    assert results.record(part(tmp_path)).result == NOT_RUN, "its source has changed: its figures count no more"
    assert results.figures() == {}
    play(tmp_path, part(tmp_path))
    assert runs.read_text() == "xx"
    play(tmp_path, part(tmp_path), {**CHECKS, "found": {"torch": "2"}})
    assert runs.read_text() == "xxx", "a version has changed"
    play(tmp_path, part(tmp_path, status=1))
    results = play(tmp_path, part(tmp_path, status=1))
    assert (runs.read_text(), results.record(part(tmp_path)).result) == ("xxxx", MISSED)
    play(tmp_path, part(tmp_path, status=1), again=True)
    assert runs.read_text() == "xxxxx"


def test_a_gpu_that_is_lost_takes_no_result_with_it(tmp_path: Path) -> None:
    play(tmp_path, part(tmp_path))
    lost = {**CHECKS, "found": {}, "lacking": {"torch": "there is none"}}
    assert play(tmp_path, part(tmp_path), lost).record(part(tmp_path)).result == NOT_RUN
    assert play(tmp_path, part(tmp_path)).record(part(tmp_path)).result == MET
    assert (tmp_path / "runs").read_text() == "x"


def test_a_part_that_is_cut_off_or_too_slow_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> processes.Ended:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(processes, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            play(tmp_path, part(tmp_path))
    assert Results(tmp_path, {}).record(part(tmp_path)).result == STOPPED
    slow = part(tmp_path, "import time\ntime.sleep(60)", limit_s=0.5)
    results = play(tmp_path, slow)
    assert results.record(slow).result == STOPPED
    assert "it did not end within" in results.record(slow).detail
    assert results.figures() == {}
    play(tmp_path, part(tmp_path))
    assert (tmp_path / "runs").read_text() == "x"


# -- what is promised -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("promise", promises.PROMISES, ids=lambda promise: promise.words)
def test_each_promise_stands_on_its_page_and_has_a_part(promise: promises.Promise) -> None:
    assert promise.words in (ROOT / promise.page).read_text("utf-8")
    assert promise.part in {part.name for part in PARTS}


def test_each_test_that_decides_a_promise_exists() -> None:
    source = Path(promises.__file__).read_text("utf-8")
    there = "".join(path.read_text("utf-8") for path in (ROOT / "tests/gpu").glob("test_*.py"))
    named = re.findall(r'"(test_\w+)"', source)
    assert named
    assert [name for name in named if f"def {name}(" not in there] == []


def test_promises_are_decided_by_figures() -> None:
    def bar(name: str, value: float, limit: float, *, at_most: bool = True) -> dict[str, Any]:
        return {"name": name, "value": value, "limit": limit, "unit": " ms", "at_most": at_most}

    stalls = promises.bars("dali-gpu", "stall p95")
    to, back = "torchvision to dali-gpu, stall p95", "dali-gpu to torchvision, stall p95"
    assert stalls({"bars": [bar(to, 12, 20), bar(back, 19, 20), bar("click", 999, 1)]}) == (
        True, f"{back}: 19 ms (at most 20)",
    )  # fmt: skip
    assert stalls({"bars": [bar(to, 31, 20), bar(back, 19, 20)]}) == (False, f"{to}: 31 ms (at most 20)")
    assert stalls({"bars": [bar("torchvision to dali-cpu, stall p95", 1, 20)]}) is None
    assert promises.bars("x")({"bars": [bar("x", 0.9, 0.95, at_most=False)]}) == (False, "x: 0.9 ms (at least 0.95)")

    two = promises.tests("test_a", "test_b")
    assert two({"tests": {"f.py::test_a[x]": "passed", "f.py::test_a[y]": "failed"}}) == (False, "failed: test_a")
    assert two({"tests": {"f.py::test_a": "passed"}}) is None, "the other was not run"
    assert two({"tests": {"f.py::test_a": "passed", "f.py::test_b": "skipped"}}) is None
    assert two({"tests": {"f.py::test_a": "passed", "f.py::test_b": "passed"}}) == (True, "2 of 2 tests passed")


def test_a_line_of_nvidia_smi_is_read() -> None:
    fields = ["utilization.gpu", "power.draw", "utilization.jpeg"]
    assert parse("1, 98, 341.22, [N/A]", fields, 7.0) == [(7.0, 1, fields[0], 98.0), (7.0, 1, fields[1], 341.22)]
    assert parse("1, 98, 34", fields, 7.0) == [], "cut off"


def test_a_row_is_off_by_what_it_lies_outside_of_ours_in_time() -> None:
    falls = [(0.1 * number, 1980.0 if number < 50 else 345.0) for number in range(100)]
    assert off([(at + 0.9, value) for at, value in falls[:80]], falls) == 0, "the same, a little later"
    assert off([(at, value + 100) for at, value in falls[:30]], falls) == pytest.approx(100)
    assert off([(99.0, 1.0)], falls) == float("inf"), "nothing of ours at that time"


def test_the_outcome_of_each_test_is_written(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_a(): pass\n"
        "def test_b(): assert 0\n"
        "def test_c(): pytest.skip('no second GPU')\n"
        "@pytest.fixture\n"
        "def broken():\n    yield\n    assert 0\n"
        "def test_d(broken): pass\n"
    )
    file = tmp_path / "outcomes.json"
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "benchmarks.gpu.outcomes", "--json", str(file)]
    ended = processes.run([*command, "--rootdir", str(tmp_path), str(tmp_path)], tmp_path / "output.txt", 120)
    assert ended.status == 1, (tmp_path / "output.txt").read_text()
    found = json.loads(file.read_text())
    assert {name.split("::")[1]: outcome for name, outcome in found["tests"].items()} == {
        "test_a": "passed",
        "test_b": "failed",
        "test_c": "skipped",
        "test_d": "failed",
    }
    assert found["counts"] == {"tests failed": 2, "tests passed": 1, "tests skipped": 1}
    assert "no second GPU" in str(found["skipped"])
