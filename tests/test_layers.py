"""How the sources are divided: no module imports itself through others of its package, not even inside a function."""

import ast
from pathlib import Path

import pytest

import autojacobin

ROOT = Path(autojacobin.__file__).parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


def imports_of(path, names):
    """Names of the modules in ``names`` that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found & names


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_of_a_package_form_no_circle(package):
    paths = [path for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
    files = {".".join(("autojacobin", *path.relative_to(ROOT).with_suffix("").parts)): path for path in paths}
    left = {name: imports_of(path, set(files)) for name, path in files.items()}
    while left:  # take away what imports nothing that is left
        lowest = {name for name, imported in left.items() if not imported & left.keys()}
        assert lowest, f"these import each other: {sorted(left)}"
        left = {name: imported for name, imported in left.items() if name not in lowest}


def test_no_folder_is_crowded():
    for folder in {path.parent for path in ROOT.rglob("*.py")}:
        assert len(list(folder.glob("*.py"))) <= 20, folder


def test_no_two_files_have_one_name():
    names = [path.name for path in ROOT.rglob("*.py") if path.name != "__init__.py"]
    assert not {name for name in names if names.count(name) > 1}
