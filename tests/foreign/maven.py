"""Programs in Java: fetched by Maven, compiled once, run in processes of their own."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_BUILD = ROOT / "build" / "foreign"
_FETCH_S = 900
_REFUSALS = (
    "Could not transfer", "Unknown host", "Network is unreachable", "Connection refused", "Connect timed out",
    "status code: 403", "status: 403",
)  # fmt: skip
"""What Maven says when the network, not the project, is at fault."""

_ABSENCES = ("Could not find artifact", "was not found in")
"""What Maven says of a version that nobody published."""

JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")
"""Options of a JVM that lives for seconds."""


class UnpublishedError(Exception):
    """There is no such version of what a pom.xml names."""


def fetch_jars(pom: Path, **properties: str) -> Path:
    """Have Maven put what a pom.xml names into a folder below build/, once for all processes of tests.

    Args:
        pom: which has the property `jars`, the folder.
        properties: others of it, dots as underscores.

    Returns:
        The folder.

    Raises:
        pytest.skip.Exception: the network does not let Maven fetch them.
        UnpublishedError: nobody published one of them.
        RuntimeError: Maven failed otherwise.
    """
    words = [f"-D{name.replace('_', '.')}={value}" for name, value in sorted(properties.items())]
    content = pom.read_bytes() + "\0".join(words).encode()
    folder = _BUILD / f"{pom.parent.name}-{hashlib.sha256(content).hexdigest()[:12]}"
    with _locked(folder.with_suffix(".lock")):
        if folder.exists():
            return folder
        absent = folder.with_suffix(".absent")
        if absent.exists():
            raise UnpublishedError(absent.read_text())
        fetching = folder.with_suffix(".fetching")
        shutil.rmtree(fetching, ignore_errors=True)
        command = ["mvn", "-B", "-ntp", "-f", str(pom), f"-Djars={fetching}", *words, "package"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S, check=False)
        if done.returncode:
            output = done.stdout[-4000:] + done.stderr[-1000:]
            if any(refusal in output for refusal in _REFUSALS):
                pytest.skip(f"Maven cannot fetch {pom.parent.name}: {output[-500:]}")
            if any(absence in output for absence in _ABSENCES):
                absent.write_text(output)
                raise UnpublishedError(output)
            raise RuntimeError(f"{' '.join(command)} failed:\n{output}")
        fetching.rename(folder)
    return folder


def compile_java(source: Path, jars: Path) -> str:
    """Compile a file of Java with those jars, once. Returns the class path with which it runs.

    The compiler is the one that each JRE of Debian carries: no JDK is needed.
    """
    digest = hashlib.sha256(source.read_bytes() + jars.name.encode()).hexdigest()[:12]
    classes = _BUILD / f"{source.stem}-{digest}"
    with _locked(classes.with_suffix(".lock")):
        if not classes.exists():
            compiling = classes.with_suffix(".compiling")
            shutil.rmtree(compiling, ignore_errors=True)
            subprocess.run(
                ["java", "-m", "jdk.compiler/com.sun.tools.javac.Main", "-Xlint:-options", "--release", "17",
                 "-cp", ":".join(map(str, jars.iterdir())), "-d", str(compiling), str(source)],
                check=True, timeout=_FETCH_S,
            )  # fmt: skip
            compiling.rename(classes)
    return f"{classes}:{jars}/*"


class _locked:
    """A lock among processes, by a file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()
