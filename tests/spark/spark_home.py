"""Spark as it is installed, but for what makes it slow where a machine is at work on other things: the process that
plans a stream has ten seconds to answer."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EARLY = Path(__file__).with_name("early")
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Options of a JVM for a few tiny queries: it starts in half the time, also because it does not verify Spark's classes."""


def spark_home(folder: Path) -> Path:
    """A SPARK_HOME, made in a folder: without the zip of Spark's Python part, which each new Python process would compile
    anew. Workers then import the package that is installed."""
    import pyspark

    new_folder = folder / "home"
    new_folder.mkdir()
    for item in Path(pyspark.__file__).parent.iterdir():
        if item.name in ("bin", "jars", "sbin", "data"):
            (new_folder / item.name).symlink_to(item)
    return new_folder


def python_path(before: str | None = None) -> str:
    """A PYTHONPATH with which workers find this checkout as they would an installed package, and the planner of a stream
    connects at once (see `early/sitecustomize.py`). before: what there is of it."""
    return os.pathsep.join([str(EARLY), str(ROOT), *filter(None, [before])])


def socket_settings(folder: Path) -> dict[str, str]:
    """Settings with which Python processes connect through Unix sockets in a folder, whose path is to be short: that of a
    socket has at most 107 bytes."""
    new_folder = folder / "s"
    new_folder.mkdir(exist_ok=True)
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(new_folder)}
