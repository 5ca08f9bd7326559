"""What others get: a source distribution that can be built, and a wheel with all that is imported and nothing else."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

import pyreplog

ROOT = Path(pyreplog.__file__).parents[1]
PACKAGES = (ROOT / "pyreplog", ROOT / "pyspark_pyreplog")
BUILT_FROM = {".py", ".pyi", ".pyx", ".pxd", ".h", ".c"}
GLIBC = (2, 28)  # of manylinux_2_28, the tag of the wheel
OWN = {"pyreplog", "pyspark_pyreplog", "benchmarks", "tests"}
NOT_CODE = {"py.typed", "FORMAT.md", "page.html", "page.css", "page.js"}


def files(*suffixes: str) -> set[str]:
    """Of the packages, with such an ending or a name of NOT_CODE."""
    paths = (path for package in PACKAGES for path in package.rglob("*") if "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in paths if path.suffix in suffixes or path.name in NOT_CODE}


def setup(folder: Path, *commands: str) -> None:
    """Without a trace in the tree: what the build notes goes to the folder."""
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "egg_info", "--egg-base", str(folder), *commands]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_a_source_distribution_has_all_that_is_built_from(tmp_path: Path) -> None:
    setup(tmp_path, "sdist", "--dist-dir", str(tmp_path))
    (archive_path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive_path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = files(*BUILT_FROM) | {"setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
    assert wanted <= names, sorted(wanted - names)
    assert not [name for name in names if name.startswith(("build/", "tests/plants"))]


def test_build_installs_all_python_sources_stubs_and_headers(tmp_path: Path) -> None:
    setup(tmp_path, "build_py", "--build-lib", str(tmp_path / "lib"))
    file_names = {
        path.relative_to(tmp_path / "lib").as_posix() for path in (tmp_path / "lib").rglob("*") if path.is_file()
    }
    assert file_names == files(".py", ".pyi", ".pxd", ".h")


def test_extensions_run_on_every_system_that_the_tag_of_the_wheel_names() -> None:
    extensions = sorted((ROOT / "pyreplog" / "_native").rglob("*.so"))
    symbols = subprocess.run(["objdump", "-T", *extensions], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    assert versions and max(versions) <= GLIBC


# ---- dependency groups -----------------------------------------------------------------------------------------


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Return what the statements of a file import, wherever they stand; expressions are not looked at."""
    names, nodes = set[str](), list[Any]([ast.parse(path.read_text())])
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        else:
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                nodes += getattr(node, field, ())
    return frozenset(names)


@functools.cache
def module_files(name: str) -> tuple[Path, ...]:
    """Return the files that an import of a module of this project runs."""
    parts = name.split(".")
    places = [ROOT.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
    return tuple(file for path in places for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file())


def distributions_behind(files: list[Path]) -> dict[str, Path]:
    """Return the distributions that these files and all that they import can ask for, with a file that does."""
    owners = packages_distributions()
    distributions: dict[str, Path] = {}
    seen: set[Path] = set()
    while files:
        path = files.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in imported(path):
            top = name.partition(".")[0]
            if top in OWN:
                files += module_files(name)
            elif top in owners:
                distributions[canonical(owners[top][0])] = path
    return distributions


def canonical(requirement: str) -> str:
    name = re.split(r"[^\w.-]", requirement)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("folder", "groups", "apart"),
    [("benchmarks", ["bench"], "kafka"), ("tests", ["test", "lint", "docs", "bench", "mutants"], "fuzz")],
)
def test_the_groups_of_a_target_hold_what_it_imports(folder: str, groups: list[str], apart: str) -> None:
    """A target of the Makefile installs the extras `cli` and `report`, and its groups. `apart` has a group of its own.

    tests.mutants imports coverage only where it reads its map, and `make mutants` installs that.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    requirements = [*project["project"]["dependencies"], *extras["cli"], *extras["report"]]
    for group in groups:
        requirements += project["dependency-groups"][group]
    files = [path for path in (ROOT / folder).rglob("*.py") if apart not in path.relative_to(ROOT).parts]
    assert files
    behind = distributions_behind(files)
    missing = {name: path for name, path in behind.items() if name not in set(map(canonical, requirements))}
    assert not missing
