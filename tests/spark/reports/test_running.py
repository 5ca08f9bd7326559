"""Running reports: by name, with parameters and progress; what is not known is told with what is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyreplog
from pyreplog import reports
from pyreplog.errors import ConfigError, InvalidArgumentError
from pyreplog.reports import spark_engine
from pyreplog.reports.catalogue import REPORTS, report_class, report_of, report_of_view
from pyreplog.reports.export import export
from pyreplog.reports.local_engine import ReportProgress
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.options import ReadOptions
from tests import samples
from tests.spark.reports.both import check
from tests.spark.reports.oracle import ORACLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "orders"
    samples.make_log(path)
    return path


def test_reports_are_run_by_name_and_as_objects(log: Path) -> None:
    (row,) = reports.run("partition_skew", log).to_pylist()
    assert (row["topic"], row["entries"], row["ratio_to_mean"]) == ("orders", samples.ENTRIES, 1.0)
    some = reports.run("partition_skew", {"path": log, "startingOffsets": 1000, "failOnDataLoss": False})
    assert some["entries"].to_pylist() == [samples.ENTRIES - 1000]
    assert reports.run(report_of("key_skew", top=1), str(log)) == reports.run("key_skew", log, top=1)


def test_each_is_a_function_in_spark(spark: SparkSession, log: Path) -> None:
    frame = spark_engine.key_skew(spark, path=log, top=2)
    assert spark_engine.key_skew.__name__ == "key_skew"
    assert frame.toArrow() == reports.run("key_skew", log, top=2)
    assert reports.run("key_skew", log, "spark", spark=spark, top=2).toArrow() == frame.toArrow()
    view = spark.read.format("pyreplog").option("view", "partition_skew").load(str(log))
    assert view.agg({"entries": "sum"}).collect()[0][0] == samples.ENTRIES
    with pytest.raises(AttributeError, match="no attribute 'key_skews'"):
        _ = spark_engine.key_skews


def test_a_running_report_tells_its_progress(log: Path) -> None:
    told = list[ReportProgress]()
    reports.run("rate_by_minute", {"path": log, "minPartitions": 4}, progress=told.append)
    assert [notice.done for notice in told] == [1, 2, 3, 4]
    assert {notice.tasks for notice in told} == {4}
    sizes = [notice.done_bytes for notice in told]
    assert sizes == sorted(sizes)
    assert 0 < sizes[0] < sizes[-1] == told[0].bytes


@pytest.mark.parametrize("workers", [0, -1])
def test_reports_and_exports_without_threads_are_refused(log: Path, tmp_path: Path, workers: int) -> None:
    says = f"workers: expected 1 or more threads, found {workers}"
    with pytest.raises(InvalidArgumentError, match=says):
        reports.run("rate_by_minute", log, workers=workers)
    with pytest.raises(InvalidArgumentError, match=says):
        export(ReadOptions.of({"path": str(log)}), tmp_path / "out", workers=workers)


@pytest.mark.parametrize("name", ORACLES)
def test_report_of_an_empty_log_has_no_rows(spark: SparkSession, tmp_path: Path, name: str) -> None:
    pyreplog.open(tmp_path / "empty").close()
    check(report_of(name), {"path": str(tmp_path / "empty")}, Snapshot(as_of_us=0), [], spark=spark, cuts=())


def test_reports_say_what_they_are() -> None:
    for name in REPORTS:
        report = report_class(name)
        assert report.name == name
        assert report.title
        assert report.definition.endswith(".")
        assert all(figure.meaning for figure in report.figures)


# ---- mistakes --------------------------------------------------------------------------------------------------


def test_unknown_reports_and_parameters_are_refused(log: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown report 'rates'; there are .*key_skew.*size_histogram"):
        reports.run("rates", log)
    with pytest.raises(ConfigError, match="unknown parameter 'bottom' of report key_skew; there are top"):
        reports.run("key_skew", log, bottom=3)
    with pytest.raises(ConfigError, match="unknown parameter 'top' of report log_gaps; there are none"):
        reports.run("log_gaps", log, top=3)
    with pytest.raises(ConfigError, match="top: expected a number of keys, 1 or more, found 0"):
        reports.run("key_skew", log, top=0)
    with pytest.raises(ConfigError, match="engine: expected local or spark, found 'flink'"):
        reports.run("key_skew", log, "flink")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="viewOptions: expected a JSON object, found"):
        report_of_view("key_skew", "[3]")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffset": "4"}, "unknown option 'startingoffset'; there are batchBytes"),
        ({"COLUMNS": "key"}, "option columns: a report reads what it needs"),
        ({"view": "log_gaps"}, "option view: a report reads what it needs"),
        ({"mode": "permissive"}, "expected FAILFAST or DROPMALFORMED, found PERMISSIVE"),
        ({"replica": "all"}, "replica: log_gaps reads each entry once; expected any, found 'all'"),
    ],
)
def test_impossible_options_of_a_report_are_refused(
    spark: SparkSession, log: Path, options: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        reports.run("log_gaps", {"path": log, **options})
    with pytest.raises(ConfigError, match=says):
        spark_engine.log_gaps(spark, path=log, **options)


def test_an_unknown_view_in_spark(spark: SparkSession, log: Path) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="unknown report 'gaps'; there are"):
        spark.read.format("pyreplog").option("view", "gaps").load(str(log)).count()


def test_a_report_passes_over_damage_when_asked(log: Path, tmp_path: Path) -> None:
    samples.make_log(tmp_path / "log")
    segment = samples.segments(tmp_path / "log")[1]
    samples.flip(
        segment,
        samples.position_of(tmp_path / "log", samples.first_entries(tmp_path / "log")[1] + 3) % samples.SEGMENT_BYTES,
    )
    with pytest.raises(pyreplog.CorruptionError):
        reports.run("log_gaps", tmp_path / "log")
    (row,) = reports.run("log_gaps", {"path": tmp_path / "log", "mode": "DROPMALFORMED"}).to_pylist()
    assert row["segment"] == segment.name
    assert row["missing"] >= 1


# ---- what is loaded --------------------------------------------------------------------------------------------


def test_importing_reports_loads_neither_pyspark_nor_pyarrow() -> None:
    code = (
        "import sys, pyreplog, pyreplog.reports\n"
        "assert not {'pyspark', 'pyarrow'} & set(sys.modules)\n"
        "import pyreplog.reports.local_engine, pyreplog.reports.spark_engine\n"
        "assert 'pyspark' not in sys.modules\n"
        "sys.modules['pyspark'] = sys.modules['pyspark.sql'] = None\n"
        "try: pyreplog.reports.run('log_gaps', 'x', 'spark')\n"
        "except pyreplog.MissingExtraError as error: print(error)\n"
    )
    assert "Spark needs pyspark: pip install 'pyreplog[spark]'" in run_python(code)


def test_reports_without_pyarrow_name_the_package_to_install() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import pyreplog, pyreplog.reports\n"
        "try: pyreplog.reports.run('log_gaps', 'x')\n"
        "except pyreplog.MissingExtraError as error: print(error)\n"
    )
    assert "reports need pyarrow: pip install 'pyreplog[spark]'" in run_python(code)


def run_python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout
