"""Spark's own source and sink of Kafka, put into a Spark that runs already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.foreign.maven import UnpublishedError, fetch_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POM = Path(__file__).parent / "spark" / "pom.xml"
_VERSION = "4.2.0"
"""For a Spark whose own is not published."""


def _fetch() -> Path:
    try:
        return fetch_jars(_POM, spark_version=pyspark.__version__)
    except UnpublishedError:
        return fetch_jars(_POM, spark_version=_VERSION)


def load_kafka(spark: SparkSession) -> None:
    """Have Spark know the format `kafka`, as `spark.jars.packages` would when it starts."""
    jars = _fetch()
    jvm = spark._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for jar in sorted(jars.iterdir()):
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())


def close_producers(spark: SparkSession) -> None:
    """Close the producers that Spark keeps for ten minutes, before their brokers go."""
    jvm = spark._jvm
    assert jvm is not None
    pool = getattr(jvm.org.apache.spark.sql.kafka010.producer, "InternalKafkaProducerPool$")
    getattr(pool, "MODULE$").reset()
