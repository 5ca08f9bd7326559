"""What others get: a source distribution that can be built, and a wheel with all that is imported and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pyreplog

ROOT = Path(pyreplog.__file__).parents[1]
PACKAGES = (ROOT / "pyreplog", ROOT / "pyspark_pyreplog")
BUILT_FROM = {".py", ".pyi", ".pyx", ".pxd", ".h", ".c"}
NOT_CODE = {"py.typed", "FORMAT.md", "page.html", "page.css", "page.js"}


def files(*suffixes: str) -> set[str]:
    """Of the packages, with such an ending or a name of NOT_CODE."""
    found = (path for package in PACKAGES for path in package.rglob("*") if "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in found if path.suffix in suffixes or path.name in NOT_CODE}


def setup(folder: Path, *commands: str) -> None:
    """Without a trace in the tree: what the build notes goes to the folder."""
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "egg_info", "--egg-base", str(folder), *commands]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_a_source_distribution_has_all_that_is_built_from(tmp_path: Path) -> None:
    setup(tmp_path, "sdist", "--dist-dir", str(tmp_path))
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = files(*BUILT_FROM) | {"setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
    assert wanted <= names, sorted(wanted - names)
    assert not [name for name in names if name.startswith(("build/", "tests/plants"))]


def test_what_is_installed_beside_the_extensions(tmp_path: Path) -> None:
    setup(tmp_path, "build_py", "--build-lib", str(tmp_path / "lib"))
    made = {path.relative_to(tmp_path / "lib").as_posix() for path in (tmp_path / "lib").rglob("*") if path.is_file()}
    assert made == files(".py", ".pyi", ".pxd", ".h")
