"""Building the bare limits at run time: Cython, then one call of the compiler with the flags below."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NATIVE = ROOT / "pyreplog" / "_native"

COMPILER = os.environ.get("CC", "gcc")
FLAGS = ("-O3", "-fno-strict-aliasing", "-Wall")
"""Those of setup.py that change code. No -march: the CRC kernels choose by CPU at run time, memcpy is glibc's."""

_MODULES: dict[str, tuple[Path, ...]] = {
    "adds": (HERE / "adds_client.c", HERE / "adds_bookie.c", HERE / "encode.c", HERE / "wake.c", NATIVE / "crc32c.c"),
    "bare": (HERE / "encode.c", HERE / "disk.c", HERE / "wake.c", NATIVE / "crc32c.c"),
    "calls": (),
    "turnstile": (HERE / "disk.c", HERE / "wake.c"),
    "quorum": (
        HERE / "quorum_client.c", HERE / "quorum_bookie.c", HERE / "encode.c", HERE / "wake.c", NATIVE / "crc32c.c",
    ),
}  # fmt: skip
_SECONDS = 120


def compiler_version() -> str:
    """First line of what the compiler says about itself."""
    return _run(COMPILER, "--version").splitlines()[0]


def built() -> Path:
    """Folder with the extension modules, built if what they are made of has changed."""
    folder = ROOT / "build" / "benchmarks" / _digest()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            for name, sources in _MODULES.items():
                _build(name, sources, Path(scratch), made)
            try:
                made.rename(folder)
            except OSError:
                if not folder.exists():  # otherwise another process has built the same meanwhile
                    raise
    return folder


def _build(name: str, sources: tuple[Path, ...], scratch: Path, made: Path) -> None:
    translated = scratch / f"{name}.c"
    _run(sys.executable, "-m", "cython", "-3", str(HERE / f"{name}.pyx"), "-o", str(translated))
    target = made / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    includes = (f"-I{sysconfig.get_path('include')}", f"-I{HERE}", f"-I{NATIVE}")
    inputs = map(str, (translated, *sources))
    _run(COMPILER, *FLAGS, "-shared", "-fPIC", *includes, *inputs, "-o", str(target))


def _digest() -> str:
    digest = hashlib.sha256(f"{FLAGS} {compiler_version()} {sys.version}".encode())
    inputs = [*HERE.glob("*.pyx"), *HERE.glob("*.[ch]"), *NATIVE.glob("crc32c*.[ch]"), NATIVE / "layout.h"]
    for path in sorted(inputs):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout
