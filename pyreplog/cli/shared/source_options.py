"""The arguments that select what reports and exports read, as options of the Spark source."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from pyreplog.cli.shared import tls

_CLUSTER = re.compile(r"(?!file:)[a-z]+:(?!//)|(zk|sqlite|pyreplog)://")
"""Matches the URL of a cluster; other URLs name offloaded logs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SOURCE",
        help="directory of a log, of a replica, or of a cluster (running or not); a cluster's metadata store: "
        "zk://host:port/root or sqlite:PATH; URL of an offloaded log: s3://bucket/prefix",
    )  # fmt: skip
    parser.add_argument(
        "--topic", metavar="NAME", action="append", default=[], dest="topics",
        help="a topic, with all its partitions; may be repeated (default: all)",
    )  # fmt: skip
    parser.add_argument("--since", metavar="TIME", help="only entries appended then or later: ISO 8601 (UTC)")
    parser.add_argument("--until", metavar="TIME", help="only entries appended before")
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="file with the secret of the bookies")
    tls.add_client_arguments(parser)
    parser.add_argument(
        "--workers", metavar="N", type=_workers, default=2, help="number of threads that read (default: 2)"
    )


def options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of the Spark source."""
    selected = place(arguments, arguments.source)
    if arguments.topics:
        selected["topics"] = json.dumps(arguments.topics)
    if arguments.since is not None:
        selected["startingTimestamp"] = arguments.since
    if arguments.until is not None:
        selected["endingTimestamp"] = arguments.until
    return selected


def place(arguments: argparse.Namespace, source: str) -> dict[str, str]:
    """Return the options that name a source, and the credentials for it."""
    if _CLUSTER.match(source):
        return {"cluster": source, **_access(arguments)}
    return {"path": source}


def _access(arguments: argparse.Namespace) -> dict[str, str]:
    """Return names of credential files; executors of Spark read them themselves."""
    files = {name: getattr(arguments, name) for name in ("secret_file", "tls_ca", "tls_cert", "tls_key")}
    return {name.replace("_", ""): str(file.resolve()) for name, file in files.items() if file is not None}


def _workers(text: str) -> int:
    count = int(text)
    if not 1 <= count <= 256:
        raise argparse.ArgumentTypeError(f"expected 1 to 256, found {count}")
    return count
