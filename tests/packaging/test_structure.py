"""The structure of the sources: no circles of imports."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
GENERATED = {"kernel_monitor/_version.py", "widgets/src/stream/protocol.ts"}
IMPORT = re.compile(r"from '(\.[^']+)\.js'")


def files(folder: str, pattern: str) -> list[Path]:
    found = [path for path in (ROOT / folder).rglob(pattern) if str(path.relative_to(ROOT)) not in GENERATED]
    assert found
    return found


def test_no_python_module_is_in_a_circle_of_imports() -> None:
    """Imports for annotations and inside functions count, too."""
    graph = grimp.build_graph("kernel_monitor", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert sum(map(len, imports.values())) > 700
    TopologicalSorter(imports).prepare()  # raises with the circle's modules


def test_no_typescript_module_is_in_a_circle_of_imports() -> None:
    imports = {
        path: {(path.parent / f"{name}.ts").resolve() for name in IMPORT.findall(path.read_text(encoding="utf-8"))}
        for path in files("widgets/src", "*.ts")
    }
    assert sum(map(len, imports.values())) > 100
    TopologicalSorter(imports).prepare()


def test_each_package_says_whether_users_may_import_from_it() -> None:
    interface = (ROOT / "docs" / "interface.md").read_text(encoding="utf-8")
    packages = [path for path in files("kernel_monitor", "__init__.py") if path.parent.parent != ROOT]
    assert len(packages) > 20
    for path in packages:
        name = ".".join(path.parent.relative_to(ROOT).parts)
        named = re.search(rf"`(from )?{re.escape(name)}\b[^`]*`", interface) is not None
        words = "Internal but for the names in docs/interface.md." if named else "Internal: no part of the public"
        assert words in (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""), name
