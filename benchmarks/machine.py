"""What a figure was measured on."""

from __future__ import annotations

import ast
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import pyreplog
from benchmarks.limits.build import FLAGS, ROOT, compiler_version
from pyreplog._native.system import checksum


def describe(directory: Path) -> dict[str, str]:
    """Machine, kernel, file system, versions, revision and compile flags."""
    directory.mkdir(parents=True, exist_ok=True)
    return {
        "machine": f"{os.cpu_count()} cores, {_cpu()}, {_memory_gib():.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(directory),
        "versions": f"Python {platform.python_version()}, numpy {version('numpy')}, Cython {version('Cython')}",
        "pyreplog": f"{pyreplog.__version__}, revision {_revision()}, CRC-32C kernel {checksum.kernels()[0]}",
        "compiler": compiler_version(),
        "compile flags": f"{' '.join(_extension_flags())}; bare limits: {' '.join(FLAGS)}",
        "load before": ", ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _file_system(directory: Path) -> str:
    """Type, device and options of the mount that a directory lies on (proc(5): mountinfo)."""
    path = directory.resolve()
    best: tuple[int, str] = (-1, "unknown")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        point, options = left.split()[4:6]
        kind, device, super_options = right.split()[:3]
        if path.is_relative_to(point) and len(point) >= best[0]:
            best = len(point), f"{kind} on {device} ({options}; {super_options})"
    return best[1]


def _revision() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changes = " with changes" if git("status", "--porcelain") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changes


def _extension_flags() -> list[str]:
    """The flags that setup.py builds the extensions with, read and not run."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["COMPILE"]:
            return [str(flag) for flag in ast.literal_eval(node.value)]
    return []
