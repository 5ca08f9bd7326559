"""What CONTRIBUTING, docs/troubleshooting.md and docs/compatibility.md list is all there is, and as the code has it; so are
settings and their defaults."""

from __future__ import annotations

import dataclasses
import importlib
import re
import tomllib
from operator import attrgetter
from pathlib import Path

import pytest

from pyreplog import errors
from pyreplog.bookie.config import BookieConfig
from pyreplog.config import LogConfig, Settings
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.partition.config import BrokerConfig
from pyreplog.topic.model.config import TopicConfig

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING, QUICK = ROOT / "CONTRIBUTING.md", ROOT / "tests" / "quick.txt"
TROUBLESHOOTING, COMPATIBILITY = ROOT / "docs" / "troubleshooting.md", ROOT / "docs" / "compatibility.md"
SETTINGS = {
    BookieConfig: "operations.md", TopicConfig: "topics.md", ReplicationPolicy: "geo.md", BrokerConfig: "partitions.md",
}  # fmt: skip
"""The guide that has a table of settings and defaults."""
UNITS = {"": 1, "Mi": 1 << 20, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "h": 3_600_000}
WORDS: dict[str, object] = {"None": None, "all": None, "majority": None, "False": False, "no cluster": ()}
LINK = re.compile(r"\]\(([^()\s]+)\)")

FILE_VERSIONS = {
    "segments of a log": ("pyreplog.cli.explaining.layout", "FORMAT_COUNTED"),
    "records in them": ("pyreplog.cli.explaining.layout", "FORMAT_VERSION"),
    "sparse index": ("pyreplog.cli.explaining.layout", "FORMAT_COUNTED"),
    "`checkpoint`": ("pyreplog.log.checkpoint", "VERSION"),
    "`identity` of a bookie": ("pyreplog.bookie.identity", "VERSION"),
    "`terms`, `members` of a replica group": ("pyreplog.stream.terms", "VERSION"),
    "applied position of a relay": ("pyreplog.ha.relay.position_file", "VERSION"),
    "cursor ledgers": ("pyreplog.cursors.cursor_pages", "VERSION"),
    "metadata of ledgers, subscriptions, partitions": ("pyreplog.ledger.ledger_metadata", "LedgerMetadata.VERSION"),
    "metadata of topics": ("pyreplog.topic.model.chain", "LedgerChain.VERSION"),
    "layout of the metadata store": ("pyreplog.metadata.layout", "LAYOUT"),
    "metadata of bookies, owners of topics": ("pyreplog.bookie.identity", "METADATA_VERSION"),
    "producer snapshots, global producer snapshots, origins snapshots": (
        "pyreplog.topic.model.producer_snapshot",
        "VERSION",
    ),
    "records of replicated subscriptions": ("pyreplog.geo.acks.journal", "VERSION"),
    "pages of positions": ("pyreplog.origins.position_page", "VERSION"),
    "`metadata.sqlite`": ("pyreplog.metadata.database", "FORMAT"),
    "manifests of backups": ("pyreplog.log.backup.manifest", "VERSION"),
    "manifests of offloaded logs": ("pyreplog.offload.manifest", "VERSION"),
    "`pyreplog.checkpoint` of a RocketMQ directory": ("pyreplog.rocketmq.synced_position", "VERSION"),
    "offsets in checkpoints of Spark streams": ("pyreplog.spark.stream.offsets", "VERSION"),
}
"""The module that has the version of a row of compatibility.md. Rows without a module have the version of records."""

SAME_ROW = {
    ("pyreplog.cursors.subscription_metadata", "SubscriptionMetadata.VERSION"): (
        "pyreplog.ledger.ledger_metadata", "LedgerMetadata.VERSION",
    ),
    ("pyreplog.topic.model.partitioned_metadata", "PartitionedMetadata.VERSION"): (
        "pyreplog.ledger.ledger_metadata", "LedgerMetadata.VERSION",
    ),
    ("pyreplog.origins.snapshot", "VERSION"): ("pyreplog.topic.model.producer_snapshot", "VERSION"),
    ("pyreplog.topic.model.global_producer_snapshot", "VERSION"): ("pyreplog.topic.model.producer_snapshot", "VERSION"),
    ("pyreplog.cursors.cursor_record", "VERSION"): ("pyreplog.cursors.cursor_pages", "VERSION"),
}  # fmt: skip
"""Versions that share a row with another one."""


def rows(text: str) -> list[list[str]]:
    """Return the cells of the rows of all tables, headings and rules left out."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def table(title: str) -> list[list[str]]:
    """Return the rows of the table of compatibility.md that this comment stands in front of."""
    text = COMPATIBILITY.read_text().partition(f"<!-- versions: {title} -->\n")[2]
    return rows(text.partition("\n\n")[0])[1:]


def constant(module: str, name: str = "VERSION") -> int:
    value: int = attrgetter(name)(importlib.import_module(module))
    return value


# ---- troubleshooting -------------------------------------------------------------------------------------------


def entries() -> dict[str, list[str]]:
    """Return the entries of error classes by their names."""
    actual_rows = [row for row in rows(TROUBLESHOOTING.read_text()) if re.fullmatch(r"`[A-Z]\w+Error`", row[0])]
    names = [row[0].strip("`") for row in actual_rows]
    assert len(names) == len({*names}), "an error has two entries"
    return dict(zip(names, actual_rows, strict=True))


def test_every_public_error_has_an_entry() -> None:
    assert entries().keys() == {*errors.__all__}


@pytest.mark.parametrize("name", errors.__all__)
def test_troubleshooting_entry_matches_its_error_class(name: str) -> None:
    kind: type[errors.ReplogError] = getattr(errors, name)
    _, happened, outcome, retry, code, advice = entries()[name]
    assert (retry, code) == ("yes" if kind.retriable else "no", str(kind.exit_code))
    assert happened and outcome and advice
    if issubclass(kind, errors.OutcomeUnknownError) or "outcome is unknown" in " ".join((kind.__doc__ or "").split()):
        assert "unknown" in outcome.lower()
    if issubclass(kind, errors.OutcomeUnknownError) or outcome.lower().startswith("unknown"):
        assert retry == "no" or "harmless" in outcome, "a call that may be done is not to be repeated as it is"


# ---- compatibility ---------------------------------------------------------------------------------------------


def test_documented_versions_of_files_are_those_of_the_code() -> None:
    for step, said, *_ in table("files"):
        module, name = FILE_VERSIONS.get(step, FILE_VERSIONS["records in them"])
        assert said.partition(",")[0] == str(constant(module, name)), step
    assert FILE_VERSIONS.keys() <= {row[0] for row in table("files")}
    assert {item: constant(*item) for item in SAME_ROW} == {item: constant(*row) for item, row in SAME_ROW.items()}


def test_documented_versions_of_wires_are_those_of_the_code() -> None:
    least, hello = constant("pyreplog.net.hello", "MIN_VERSION"), constant("pyreplog.net.hello")
    joining = constant("pyreplog.ha.protocol.messages")
    clients = constant("pyreplog.ha.protocol.client_messages", "CLIENT_VERSION")
    assert {row[0]: row[1] for row in table("wires")} == {
        "bookies": f"{least} to {hello}",
        "topics": f"{least} to {constant('pyreplog.topic.model.wire.protocol')}",
        "replica groups": f"{joining} (of the hello: {least} to {hello}); clients of a group: {clients}",
        "brokers of partitions, with each other": f"{least} to {constant('pyreplog.partition.wire')}",
        "RocketMQ HA": "none",
    }


def test_documented_libraries_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    }
    assert {f"{name}>={least}" for name, _, least, _ in table("libraries")} == wanted


# ---- settings --------------------------------------------------------------------------------------------------


def defaults(cells: list[str]) -> dict[str, object]:
    """Return the defaults in one row of a table of settings: one for each name, or one for all."""
    names, said = re.findall(r"`(\w+)`", cells[0]), [default(text) for text in cells[1].split(", ")]
    return dict(zip(names, said * (len(names) // len(said)), strict=True))


def default(text: str) -> object:
    number, _, unit = text.partition(" ")
    if number.isdigit():
        return int(number) * UNITS[unit]
    return WORDS[text] if text in WORDS else text.strip("`")


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_setting_and_its_default(
    kind: type[Settings], shipped_segment_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogConfig, "default_segment_bytes", shipped_segment_bytes)
    text = (ROOT / "docs" / SETTINGS[kind]).read_text()
    listed = rows(text.partition("\n| setting | default | |\n")[2].partition("\n\n")[0])
    said = {name: value for cells in listed for name, value in defaults(cells).items()}
    assert said == dataclasses.asdict(kind())


# ---- contributing ----------------------------------------------------------------------------------------------


def test_every_target_of_make_is_documented() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    targets = {*re.findall(r"^([a-z]+):", makefile, re.MULTILINE)}
    assert targets == {*phony[1].split()}
    assert targets == {*re.findall(r"^\| `make ([a-z]+)", CONTRIBUTING.read_text(), re.MULTILINE)}


def test_quick_tests_are_there_and_of_all_packages() -> None:
    lines = QUICK.read_text().splitlines()
    files = [line for line in lines if not line.startswith("-")]
    named = [line.removeprefix("--deselect=").partition("::")[0] for line in lines if not line.startswith("-k=")]
    assert files == sorted({*files})
    assert not [name for name in named if not (ROOT / name).is_file()]
    packages = {path.parent.name for path in (ROOT / "pyreplog").glob("*/__init__.py")}
    folders = {path.relative_to(ROOT).parts[1] for path in (ROOT / "tests").rglob("test_*.py")}
    assert packages & folders <= {Path(name).parts[1] for name in files}


# ---- links -----------------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """Return what a link may name behind `#`, as GitHub makes it from headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [CONTRIBUTING, TROUBLESHOOTING, COMPATIBILITY], ids=lambda path: path.stem)
def test_links_of_tables_have_targets(path: Path) -> None:
    missing = []
    for link in LINK.findall(path.read_text()):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            missing.append(link)
    assert not missing
