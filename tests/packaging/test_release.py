"""What a release is made of: workflows, recipe, Dockerfile, issue forms, citation; linted, and of one version."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import kernel_monitor

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
PACKAGING = ROOT / "docs" / "packaging"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BIN = Path(sys.executable).parent


def read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return value


def lint(program: str, *paths: Path) -> str:
    done = subprocess.run([BIN / program, *paths], cwd=ROOT, capture_output=True, text=True, timeout=60)
    return f"{done.stdout}{done.stderr}" if done.returncode else ""


def test_the_workflows_are_valid() -> None:
    workflows = sorted((GITHUB / "workflows").glob("*.yml"))
    assert {path.stem for path in workflows} >= {"docs", "release", "test"}
    assert lint("actionlint", *workflows) == ""


def test_the_linter_of_workflows_sees_a_mistake(tmp_path: Path) -> None:
    text = (GITHUB / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "needs: build" in text
    (tmp_path / "broken.yml").write_text(text.replace("needs: build", "needs: built"), encoding="utf-8")
    assert "built" in lint("actionlint", tmp_path / "broken.yml")


def test_a_tag_is_built_checked_and_published_without_a_token() -> None:
    text = (GITHUB / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = read(GITHUB / "workflows" / "release.yml")["jobs"]
    assert "tags: ['v*']" in text
    assert "secrets." not in text
    runs = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert [
        word for word in ("npm ci", "-m build", "GITHUB_REF_NAME#v", "twine check --strict") if word not in str(runs)
    ] == []
    assert (jobs["publish"]["needs"], jobs["publish"]["permissions"]) == ("build", {"id-token": "write"})
    assert jobs["publish"]["environment"]["name"] == "pypi"
    # Only what publishes may have a token of the repository's identity.
    assert "permissions" not in jobs["build"]


def test_the_dockerfile_is_valid() -> None:
    assert lint("hadolint", PACKAGING / "Dockerfile") == ""


def test_every_place_of_a_release_has_the_version() -> None:
    version = kernel_monitor.__version__
    assert read(ROOT / "CITATION.cff")["version"] == version
    assert read(PACKAGING / "conda" / "recipe.yaml")["context"]["version"] == version
    wheel = re.findall(r"kernel_monitor-(\S+?)-py3-none-any\.whl", (PACKAGING / "Dockerfile").read_text("utf-8"))
    assert set(wheel) == {version}
    binder = (ROOT / ".binder" / "requirements.txt").read_text("utf-8")
    assert f"kernel-monitor[all]=={version}" in binder.splitlines()


def test_the_recipe_requires_what_the_package_requires() -> None:
    recipe = read(PACKAGING / "conda" / "recipe.yaml")

    def bounds(requirements: list[str]) -> set[tuple[str, str]]:
        return {(found.name, str(found.specifier)) for found in map(Requirement, requirements)}

    run = [text.replace(" ", "") for text in recipe["requirements"]["run"] if not text.startswith("python ")]
    assert bounds(run) == bounds(PROJECT["dependencies"])
    (python,) = set(recipe["requirements"]["run"]) & {f"python {PROJECT['requires-python']}"}
    assert python == "python >=3.11"
    torch = dict(bounds(PROJECT["optional-dependencies"]["torch"]))
    limits = [text.replace("pytorch", "torch").replace(" ", "") for text in recipe["requirements"]["run_constraints"]]
    assert [pair for pair in bounds(limits) if torch.get(pair[0]) != pair[1]] == []
    (entry,) = recipe["build"]["python"]["entry_points"]
    assert dict([entry.split(" = ")]) == PROJECT["scripts"]


def test_each_issue_form_asks_for_what_it_needs_and_names_each_field_once() -> None:
    forms = [path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    assert {path.stem for path in forms} == {"bug", "dali", "feature"}
    for path in forms:
        form = read(path)
        assert {"name", "description", "body"} <= form.keys(), path
        ids = [field["id"] for field in form["body"]]
        assert len(ids) == len(set(ids)), path
        assert any(field.get("validations", {}).get("required") for field in form["body"]), path
        assert all(field["type"] == "textarea" and field["attributes"]["label"] for field in form["body"]), path


def test_the_public_home_stands_in_one_place() -> None:
    """It is not decided: who decides it changes one line."""
    (home,) = PROJECT["urls"].values()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.fail(f"not a clone: {tracked.stderr}")
    kinds = {".cff", ".json", ".md", ".py", ".toml", ".ts", ".txt", ".yaml", ".yml"}
    paths = [ROOT / name for name in tracked.stdout.splitlines()]
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths if path.suffix in kinds}
    holders = [name for name, text in texts.items() if home in text]
    assert holders == ["pyproject.toml"]


def test_the_changelog_is_read_in_two_minutes() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert len(text.encode()) <= 6000
