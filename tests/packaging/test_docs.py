"""What README and docs name exists, and the site builds without a warning."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*DOCS, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
SOURCES = [
    path
    for folder, pattern in (
        ("kernel_monitor", "*.py"), ("tests", "*.py"), ("benchmarks", "*.py"), ("widgets/src", "*.ts"),
        ("extension/src", "*.ts"), ("example_notebooks", "*.ipynb"),
    )
    for path in (ROOT / folder).rglob(pattern)
]  # fmt: skip
TOPS = "kernel_monitor|tests|benchmarks|widgets|extension|docs|example_notebooks"
PATH = re.compile(rf"(?<![\w/.-])(?:{TOPS})/[\w./-]*\w")
NAME = re.compile(r"(?<![\w/.-])\w+\.(?:py|ts)\b")
DOTTED = re.compile(r"(?<![\w/.])kernel_monitor(?:\.[A-Za-z_]\w*)+")
STATION = re.compile(r"^(\d+)\. `([\w/]+\.(?:py|ts))` · `([\w.]+)` \w", re.MULTILINE)
OF_MONITOR = re.compile(r"(?<![\w/.-])monitor\.([a-z_]\w*)")
CELL = 120


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def attribute(dotted: str) -> object:
    """The object of a dotted name: its longest beginning that is a module, then attributes."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if not dotted.startswith(str(error.name)):
                raise
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(dotted)


def declared(source: str, name: str) -> bool:
    """Whether TypeScript exports a class or function, or a class with that method."""
    owner, _, method = name.partition(".")
    if not re.search(rf"^export (?:abstract )?(?:async )?(?:class|function) {owner}\b", source, re.MULTILINE):
        return False
    body = source[source.index(f" {owner}") :]
    return not method or bool(re.search(rf"^  (?:async |override |static )*{method}\(", body, re.MULTILINE))


@pytest.mark.parametrize("page", names(PAGES))
def test_every_file_that_a_page_names_exists(page: str) -> None:
    named = set(PATH.findall(text(page)))
    assert sorted(path for path in named if not (ROOT / path).exists()) == []
    known = {path.name for path in SOURCES} | {"train.py"}
    assert sorted(set(NAME.findall(text(page))) - known) == []


@pytest.mark.parametrize("page", names(PAGES))
def test_every_python_name_that_a_page_names_exists(page: str) -> None:
    missing = []
    for dotted in sorted(set(DOTTED.findall(text(page)))):
        try:
            attribute(dotted)
        except (AttributeError, ModuleNotFoundError):
            missing.append(dotted)
    assert missing == []


@pytest.mark.parametrize("page", names(PAGES))
def test_every_name_of_the_monitor_that_a_page_names_exists(page: str) -> None:
    monitor = attribute("kernel_monitor.monitor")
    assert sorted(name for name in set(OF_MONITOR.findall(text(page))) if not hasattr(monitor, name)) == []


def test_the_interface_and_the_package_list_the_same_names() -> None:
    """Packages that it names have names of their own there."""
    import kernel_monitor

    listed = set(re.findall(r"\bkernel_monitor\.([A-Za-z]\w*)", text("docs/interface.md")))
    packages = {path.stem for path in (ROOT / "kernel_monitor").iterdir()} - set(kernel_monitor.__all__)
    assert listed - packages == set(kernel_monitor.__all__) - {"__version__"}


@pytest.mark.parametrize("way", ["sample", "click"])
def test_each_station_of_a_way_through_the_program_exists(way: str) -> None:
    section = text("docs/architecture.md").split(f"## The way of a {way}\n")[1].split("\n## ")[0]
    stations = STATION.findall(section)
    assert [int(number) for number, _, _ in stations] == list(range(1, len(stations) + 1))
    assert 6 <= len(stations) <= 12
    assert len(stations) == len(re.findall(r"^\d+\.", section, re.MULTILINE))
    for _, path, name in stations:
        if path.endswith(".ts"):
            assert declared(text(path), name), f"{path} has no {name}"
        else:
            assert callable(attribute(f"{path.removesuffix('.py').replace('/', '.')}.{name}"))


@pytest.mark.parametrize("page", names(PAGES))
def test_no_table_has_a_long_cell(page: str) -> None:
    cells = [
        cell.strip()
        for line in text(page).splitlines()
        if line.startswith("|")
        for cell in line.strip("| ").split(" | ")
    ]
    assert [cell for cell in cells if len(cell) > CELL] == []


def test_every_page_that_the_sources_name_exists() -> None:
    named = {found for path in SOURCES for found in re.findall(r"docs/[\w-]+\.md", path.read_text(encoding="utf-8"))}
    assert named
    assert sorted(page for page in named if not (ROOT / page).exists()) == []


def test_every_make_command_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    named = {found for page in PAGES for found in re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8"))}
    assert named <= targets


def test_the_readme_is_one_screen() -> None:
    readme = text("README.md")
    assert len(readme.splitlines()) <= 120
    figures = re.findall(r"^\| .*\| `((?:python|make) [^`]+)` \|$", readme, re.MULTILINE)
    assert 5 <= len(figures) <= 10
    assert [command for command in figures if f"`{command}`" not in text("docs/benchmarks.md")] == []


def test_the_pictures_are_few_small_and_shown() -> None:
    pictures = list((ROOT / "docs" / "screens").iterdir())
    assert len(pictures) <= 9
    assert sum(picture.stat().st_size for picture in pictures) < 2e6
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [picture.name for picture in pictures if f"screens/{picture.name})" not in pages] == []


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "docs", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (built.returncode, built.stderr) == (0, "")
    for page in DOCS:
        html = (tmp_path / page.relative_to(ROOT / "docs").with_suffix(".html")).read_text(encoding="utf-8")
        assert re.findall(r"<(?:script|img|iframe)[^>]* src=\"(?:https?:)?//[^>]*>", html) == []
        assert re.findall(r"<link[^>]* href=\"(?:https?:)?//[^>]*>", html) == []
    styles = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", styles) == []


@pytest.mark.parametrize(
    ("page", "heading"), [("docs/faults.md", None), ("docs/one-plan.md", "What is guaranteed"), ("SECURITY.md", None)]
)
def test_each_promise_names_its_test(page: str, heading: str | None) -> None:
    """A promise is a point that begins with what it is about, in bold."""
    text = (ROOT / page).read_text("utf-8")
    if heading is not None:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    promises = [line for line in text.splitlines() if line.startswith("- **")]
    assert len(promises) > 5
    assert [promise[:80] for promise in promises if "`tests/" not in promise] == []
