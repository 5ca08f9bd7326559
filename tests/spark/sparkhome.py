"""Spark as it is installed, but for the zip of its Python part: each new Python process would compile that anew, and the
one that plans a stream has ten seconds to answer, which a machine at work on other things does not always allow."""

from __future__ import annotations

from pathlib import Path


def spark_home(folder: Path) -> Path:
    """A SPARK_HOME, made in a folder; workers then import the package that is installed."""
    import pyspark

    made = folder / "home"
    made.mkdir()
    for item in Path(pyspark.__file__).parent.iterdir():
        if item.name in ("bin", "jars", "sbin", "data"):
            (made / item.name).symlink_to(item)
    return made
