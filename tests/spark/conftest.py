"""One Spark for all tests of this folder: starting it takes longer than most of them. They come first, so that xdist
gives them to its first worker: no other one starts a Spark, and the rest is there to be stolen when they are done."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from .spark_home import JAVA, python_path, socket_settings, spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules stay whole: what they share is made once."""
    first = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in first)


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two workers, which run this interpreter and find this checkout as they would an installed package."""
    from pyspark.sql import SparkSession

    before = {name: os.environ.get(name) for name in ("PYSPARK_PYTHON", "PYTHONPATH", "SPARK_HOME")}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = python_path(before["PYTHONPATH"])
    folder = tmp_path_factory.mktemp("spark")
    os.environ["SPARK_HOME"] = str(spark_home(folder))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.extraJavaOptions": JAVA,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",  # to compile a query takes longer than to run it on so few rows
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        **socket_settings(folder),
    }
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    _end(session)
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def _end(session: SparkSession) -> None:
    """Of its JVM, too, and of all that this process knows of it: the tests of other folders run without."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    session.stop()
    gc.collect()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # it removes its files
    SparkContext._gateway = SparkContext._jvm = None
