"""In Spark itself: found by its name, one schema, one answer for each query, and errors that say what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyreplog
from tests import samples

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "orders"
    samples.make_log(path)
    return path


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    reader = spark.read.format("pyreplog")
    for name, value in options.items():
        reader = reader.option(name, value)  # type: ignore[arg-type]
    return reader.load(str(path))


def test_found_by_its_name_with_kafkas_columns(spark: SparkSession, log: Path) -> None:
    frame = load(spark, log)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    rows = frame.orderBy("offset").collect()
    with pyreplog.open(log, "r") as reader:
        records = [record for batch in reader.read() for record in batch]
    assert [(row.key, row.value, row.offset) for row in rows] == [(r.key, r.value, r.entry) for r in records]
    assert {(row.topic, row.partition, row.timestampType) for row in rows} == {("orders", -1, 1)}


def test_every_column_reaches_spark(spark: SparkSession, log: Path) -> None:
    frame = load(spark, log, includeHeaders=True, includeMetadata=True, mode="PERMISSIVE", minPartitions=3)
    row = frame.where("offset = 2").collect()[0].asDict()
    assert row["headers"] == []
    assert (row["size"], row["entryId"], row["crcOk"], row["_corrupt_record"]) == (40, 2, True, None)
    assert row["segment"] == samples.segments(log)[0].name
    assert row["eventTime"].timestamp() == pytest.approx(1_699_999_999.998)
    assert frame.rdd.getNumPartitions() == 3


def test_spark_reads_the_columns_of_a_users_schema(spark: SparkSession, log: Path) -> None:
    frame = spark.read.format("pyreplog").schema("size int, offset long").load(str(log))
    assert frame.columns == ["size", "offset"]
    assert frame.agg({"size": "sum"}).collect()[0][0] == sum(len(samples.value_of(n)) for n in range(samples.ENTRIES))


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Queries are run as they are where nobody is in a hurry: Spark compiles them, changes its plans under way, and would
    hand filters down to a source that takes them."""
    names = (
        "spark.sql.codegen.wholeStage", "spark.sql.adaptive.enabled", "spark.sql.python.filterPushdown.enabled",
    )  # fmt: skip
    before = {name: spark.conf.get(name) for name in names}
    for name in names:
        spark.conf.set(name, "true")
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.usefixtures("compiled")
def test_no_querys_filter_changes_anothers_answer(spark: SparkSession, log: Path) -> None:
    frame = load(spark, log)
    assert frame.where("offset > 1000").count() == samples.ENTRIES - 1001
    assert frame.count() == samples.ENTRIES
    assert frame.where("key is null").count() == samples.ENTRIES // 3
    assert frame.where("offset < 5").select("offset").count() == 5
    assert frame.count() == samples.ENTRIES


def test_a_view_in_sql_reads_a_log(spark: SparkSession, log: Path) -> None:
    spark.sql(f"CREATE OR REPLACE TEMP VIEW orders USING pyreplog OPTIONS (path '{log}', startingOffsets '1190')")
    assert spark.sql("SELECT count(*), min(offset) FROM orders").collect()[0][:] == (10, 1190)


def test_spark_reads_lists_of_paths(spark: SparkSession, log: Path) -> None:
    assert spark.read.format("pyreplog").load([str(log), str(log.parent / "ord*")]).count() == samples.ENTRIES


def test_the_source_may_be_registered_by_hand(spark: SparkSession, log: Path) -> None:
    from pyreplog.spark import register

    register(spark)
    assert load(spark, log, columns="offset").count() == samples.ENTRIES


def test_empty_log_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    pyreplog.open(tmp_path / "empty").close()
    assert load(spark, tmp_path / "empty").count() == 0


def test_plans_are_settled_once_and_a_new_load_sees_more(spark: SparkSession, tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log") as log:
        log.append(b"one")
        frame = load(spark, log.path, columns="offset")
        assert frame.count() == 1
        log.append(b"two")
        assert frame.count() == 1
        assert load(spark, log.path, columns="offset").count() == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffset": 4}, "unknown option 'startingoffset'; there are batchBytes"),
        ({"columns": "keys"}, "unknown column 'keys'; there are key, value"),
        ({"startingOffsets": 5000}, "startingOffsets 5000, but the log ends at 1200"),
    ],
)
def test_invalid_read_options_raise_analysis_exception(
    spark: SparkSession, log: Path, options: dict[str, object], says: str
) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=says):
        load(spark, log, **options).count()


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("sise int", "unknown column 'sise'; there are key, value"),
        ("size long", "column size: expected the type int, found bigint"),
    ],
)
def test_invalid_user_schema_raises_analysis_exception(spark: SparkSession, log: Path, schema: str, says: str) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=says):
        spark.read.format("pyreplog").schema(schema).load(str(log)).count()


def test_damaged_record_raises_with_its_position_unless_malformed_rows_are_dropped(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    samples.make_log(tmp_path / "log")
    position = samples.position_of(tmp_path / "log", 10)
    samples.flip(samples.segments(tmp_path / "log")[0], position + 50)
    with pytest.raises(PySparkException, match=f"at position {position}: expected CRC-32C"):
        load(spark, tmp_path / "log").collect()
    assert load(spark, tmp_path / "log", mode="DROPMALFORMED").count() == samples.ENTRIES - 1


def test_import_of_the_data_source_loads_no_heavy_modules() -> None:
    code = (
        "import sys, pyspark_pyreplog, pyreplog.spark; print(*sys.modules)\n"
        "assert not hasattr(pyspark_pyreplog, 'Other')\n"
        "assert pyspark_pyreplog.DefaultSource is pyreplog.spark.PyreplogDataSource\n"
        "assert not {'pyreplog.ledger.cluster', 'pyreplog.net.reactor', 'kazoo', 'sqlite3'} & set(sys.modules)\n"
        "import pyreplog.tables.scan\n"
        "assert not {'pyreplog.ledger.cluster', 'pyreplog.net.reactor', 'kazoo'} & set(sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert not {"pyspark", "pyarrow", "numpy"} & set(run.stdout.split())


def test_without_pyspark_others_are_still_found() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import pyspark_pyreplog, pyreplog, pyreplog.spark\n"
        "assert not hasattr(pyspark_pyreplog, 'DefaultSource')\n"
        "try: pyreplog.spark.register(None)\n"
        "except pyreplog.MissingExtraError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "pip install 'pyreplog[spark]'" in run.stdout
