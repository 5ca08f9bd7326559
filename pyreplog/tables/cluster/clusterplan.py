"""Planning a cluster, embedded or over TCP: topics, ledgers, or the copies that bookies have of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from pyreplog.errors import ConfigError
from pyreplog.tables.cluster.ledgers import check_offsets, ledger_slices, there
from pyreplog.tables.cluster.origins import ClusterView, chosen, survey_remote, survey_stored
from pyreplog.tables.cluster.storedmetadata import StoredMetadata
from pyreplog.tables.cluster.topics import topic_slices
from pyreplog.tables.logs import look
from pyreplog.tables.logslices import Part, slices_of
from pyreplog.tables.options import ALL, ANY, ReadOptions
from pyreplog.tables.paths import METADATA, bookie_logs

SECRET = "PYREPLOG_SECRET"
"""Variable of the environment that holds what bookies were started with, when no option does."""


def cluster_slices(folder: Path | None, options: ReadOptions) -> Sequence[tuple[Part, int]]:
    """Slices, uncut, of all that is wanted, and about how many bytes each is. folder: of an embedded cluster; None: the
    option `cluster` names one.

    Errors: those of `topic_slices`, `ledger_slices`, of planning logs, and of connecting.
    """
    if folder is not None and options.replica != ANY:
        return _copies(folder, options)
    with survey_of(folder, options) as survey:
        return topic_slices(survey, options) if options.reads_topics else ledger_slices(survey, options)


def survey_of(folder: Path | None, options: ReadOptions) -> AbstractContextManager[ClusterView]:
    """A cluster as options name it. folder: of an embedded one. Errors: those of connecting."""
    if folder is not None:
        return survey_stored(folder)
    credentials = options.credentials
    if credentials.secret is None and credentials.secret_file is None and SECRET in os.environ:
        credentials = replace(credentials, secret=os.environ[SECRET].encode())
    assert options.cluster is not None, "one of the two is given"
    return survey_remote(options.cluster, credentials)


def _copies(folder: Path, options: ReadOptions) -> Sequence[tuple[Part, int]]:
    """Every copy that the bookies of a directory have of ledgers that are not deleted: their logs, from end to end."""
    check_offsets(options)
    logs = bookie_logs(folder)
    wanted = list(logs) if options.replica == ALL else chosen(logs, options.replica)
    if not wanted:
        raise ConfigError(
            f"replica: expected any, all or one of {', '.join(logs) or 'no bookies'}, found {options.replica!r}"
        )
    with StoredMetadata(folder / METADATA) as metadata:
        ledgers = there(metadata)
    return slices_of([(look(logs[bookie]), bookie) for bookie in wanted], options, ledgers)
