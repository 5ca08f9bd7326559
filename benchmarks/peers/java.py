"""Programs in Java: fetched and compiled by Maven, run in processes of their own."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from benchmarks.peers.replicated.peer import program

_SECONDS = 600


def package(folder: Path) -> None:
    """Have Maven do what the folder's pom.xml says."""
    run([program("mvn", "maven"), "-q", "-B", "-f", str(folder / "pom.xml"), "package"])


def command(classpath: str, *words: str) -> list[str]:
    """That runs a class. words: options, the class, its arguments."""
    return [program("java", "default-jdk-headless"), "-cp", classpath, *words]


def run(words: list[str]) -> str:
    """What a command prints. RuntimeError when it fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def listens(port: int) -> bool:
    """Whether a server does on this machine. ConnectionRefusedError: none does."""
    socket.create_connection(("127.0.0.1", port)).close()
    return True
