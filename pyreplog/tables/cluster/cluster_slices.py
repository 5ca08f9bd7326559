"""The plan of a read of a cluster, embedded or over TCP: slices of topics, of ledgers, or of the copies on bookies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from pyreplog.errors import ConfigError
from pyreplog.net.credentials import Credentials
from pyreplog.tables.cluster.ledgers import check_offsets, existing_ledgers, ledger_slices
from pyreplog.tables.cluster.origins import ClusterSnapshot, chosen, survey_remote, survey_stored
from pyreplog.tables.cluster.stored_metadata import StoredMetadata
from pyreplog.tables.cluster.topics import topic_slices
from pyreplog.tables.log_slices import Part, slices_of
from pyreplog.tables.logs import take_snapshot
from pyreplog.tables.options import ALL, ANY, ReadOptions
from pyreplog.tables.paths import METADATA, bookie_logs

SECRET = "PYREPLOG_SECRET"
"""Environment variable with the secret of the bookies, for when no option sets it."""


def cluster_slices(folder: Path | None, options: ReadOptions) -> Sequence[tuple[Part, int]]:
    """Return uncut slices of a cluster that a read needs, with their approximate sizes in bytes.

    folder: directory of an embedded cluster; None: the option `cluster` names one. Raises the errors of `topic_slices`,
    `ledger_slices`, `log_slices` and of connecting.
    """
    if folder is not None and options.replica != ANY:
        return _copies(folder, options)
    with survey_of(folder, options) as survey:
        return topic_slices(survey, options) if options.reads_topics else ledger_slices(survey, options)


def survey_of(folder: Path | None, options: ReadOptions) -> AbstractContextManager[ClusterSnapshot]:
    """Open the cluster that options name. folder: directory of an embedded one. Raises the errors of connecting."""
    if folder is not None:
        return survey_stored(folder)
    credentials = options.credentials
    if credentials.secret is None and credentials.secret_file is None and SECRET in os.environ:
        credentials = replace(credentials, secret=os.environ[SECRET].encode())
    assert options.cluster is not None, "either a folder or the option cluster is set"
    return survey_remote(options.cluster, credentials)


def environment_credentials() -> Credentials:
    """Return credentials with the secret of the environment, if it has one."""
    return Credentials(secret=os.environ[SECRET].encode() if SECRET in os.environ else None)


def _copies(folder: Path, options: ReadOptions) -> Sequence[tuple[Part, int]]:
    """Return slices of whole bookie logs: every copy in a directory of the entries of ledgers that are not deleted."""
    check_offsets(options)
    logs = bookie_logs(folder)
    wanted = list(logs) if options.replica == ALL else chosen(logs, options.replica)
    if not wanted:
        raise ConfigError(
            f"replica: expected any, all or one of {', '.join(logs) or 'no bookies'}, found {options.replica!r}"
        )
    with StoredMetadata(folder / METADATA) as metadata:
        ledgers = existing_ledgers(metadata)
    return slices_of([(take_snapshot(logs[bookie]), bookie) for bookie in wanted], options, ledgers)
