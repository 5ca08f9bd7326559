"""Opening a log directory for writing: check it, finish an interrupted truncation, and recover the log."""

from __future__ import annotations

import logging
import os
import uuid as uuid_module
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pyreplog._native.log.tail_page import PAGE, Tail
from pyreplog.config import LogConfig
from pyreplog.errors import ConfigError, GroupLogError, NotALogError, NotAReplicaError, ReadOnlyError, ReplicaError
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import names, recovery, tail_page, truncation
from pyreplog.log.checkpoint import Checkpoint, CheckpointFile
from pyreplog.log.files import Files, boot_id
from pyreplog.log.truncation import Truncation
from pyreplog.regular_files import open_changing

logger = logging.getLogger(__name__)


@dataclass
class StartupResult:
    """The result of `start`: the checkpoint of the log, and the result of its recovery."""

    checkpoint: Checkpoint
    found: recovery.RecoveryResult


def prepare_directory(path: Path, files: Files, *, create: bool, mirror: bool = False, grouped: bool = False) -> None:
    """Create the directory of a log, or check that an existing one can hold a log.

    mirror: the log is a copy of another one. grouped: the log may be that of a replica group.

    Raises NotALogError if the directory holds something else, or does not exist and `create` is False; ReadOnlyError if
    it cannot be written; ReplicaError, NotAReplicaError or GroupLogError if the log is of another kind.
    """
    recovery.check_directory(path)
    if not path.exists():
        if not create:
            raise NotALogError(f"{path} does not exist")
        files.make_directory(path)
    if not os.access(path, os.W_OK):
        raise ReadOnlyError(f"{path} cannot be written; open it with mode='r'")
    if mirror != (path / names.REPLICA).exists():
        raise NotAReplicaError(path) if mirror else ReplicaError(path)
    if not (grouped or mirror) and (path / names.TERMS).exists():
        raise GroupLogError(path)
    present = {entry.name for entry in path.iterdir()}
    if names.segment_bases(path) or names.CHECKPOINT in present:
        return
    # A log whose creation was interrupted by a kill has some of these files and no others.
    own = {names.LOCK, names.TAIL, names.CHECKPOINT, names.REPLICA, names.TERMS, names.MEMBERS}
    foreign = {name for name in present if name.removesuffix(".new") not in own}
    if foreign:
        raise NotALogError(f"{path} holds {min(foreign)!r} and no segment of a log")


def start(path: Path, files: Files, config: LogConfig, *, create: bool) -> StartupResult:
    """Bring the directory into a state that can be appended to. The caller holds the writer's lock.

    Raises NotALogError if it holds no log and `create` is False, ConfigError if `config` has another segment size than
    the log, and the errors of `recovery.recover`.
    """
    for stray in (*names.spare_paths(path), *path.glob("fresh-*.seg"), *path.glob("*.new")):
        files.remove(stray)
    files.sync_directory(path)  # the marker of a finished truncation may be removed, but not durably
    if not (path / names.TAIL).exists():  # a new log: its creator may have been killed before the directory was durable
        files.sync_directory(path.parent)
    _finish_truncation(path, files)
    checkpoint = checkpoints.load(path)
    if checkpoint is None and not names.segment_bases(path):
        if not create:
            raise NotALogError(f"{path} holds no log")
        return _create_log(path, files, config)
    recovered = recovery.recover(path, files, checkpoint, writable=True)
    size = recovered.checkpoint.segment_bytes
    if config.segment_bytes not in (size, LogConfig.default_segment_bytes):
        raise ConfigError(f"segment_bytes: expected {size}, with which the log was made, found {config.segment_bytes}")
    _make_durable(path, files, recovered)
    return StartupResult(recovered.checkpoint, recovered)


def _create_log(path: Path, files: Files, config: LogConfig) -> StartupResult:
    """Create a log, which consists of its checkpoint only."""
    checkpoint = Checkpoint(
        uuid=uuid_module.uuid4().bytes,
        segment_bytes=config.segment_bytes,
        start=0,
        position=0,
        entry=0,
        epoch=0,
        clean=False,
    )
    CheckpointFile(path, files, checkpoint).close()
    return StartupResult(checkpoint, recovery.recover(path, files, checkpoint, writable=True))


def _make_durable(path: Path, files: Files, recovered: recovery.RecoveryResult) -> None:
    """Make the recovered log durable: cut the torn tail, remove strays, and rewrite unproven records."""
    if recovered.cut:
        recovery.cut(path, files, recovered)
    recovery.remove(path, files, recovered.survey.strays)
    if not recovered.checkpoint.clean:
        recovery.rewrite_unproven(files, recovered)


def _finish_truncation(path: Path, files: Files) -> None:
    wanted, checkpoint = truncation.pending(path), checkpoints.load(path)
    if wanted is None or checkpoint is None:
        return
    logger.warning("%s: finishing the truncation to position %d", path, wanted.position)
    file = CheckpointFile(path, files, checkpoint)
    truncation.publish_cut_offline(path, checkpoint.uuid, wanted)
    truncation.apply(path, files, wanted, file)
    truncation.publish_cut_offline(path, checkpoint.uuid, wanted)
    file.close()


def open_tail_file(path: Path, files: Files) -> BinaryIO:
    """Open the file of the tail page for a writer, and create it if need be.

    Raises OSError if the system refuses, ReplogError if the disk is full or the file is damaged.
    """
    page = path / names.TAIL
    if not page.exists() or page.stat().st_size < PAGE:
        files.replace_small(page, bytes(PAGE))
    file = open_changing(page)
    try:
        files.allocate(file.fileno(), page, PAGE)
    except BaseException:
        file.close()
        raise
    return file


def open_tail(path: Path, files: Files, started: StartupResult) -> Tail:
    """Map the tail page for a writer, and create its file if need be.

    Readers trust the page as soon as it has the ids of this boot and log, and its visible end is not 0. So words of
    another boot or log are cleared first. Words of this boot stay, since readers may use them; but a visible end behind
    a cut of recovery is moved to the cut.
    """
    uuid, recovered = started.checkpoint.uuid, started.found
    with open_tail_file(path, files) as file:
        tail = Tail(file, writable=True)
    is_own = tail.belongs_to(boot_id(), uuid)
    if is_own and tail.visible > recovered.end:
        truncation.publish_cut_offline(
            path, uuid, Truncation(recovered.end, recovered.entry, recovered.checkpoint.epoch)
        )
    if not is_own or tail_page.fault(path, tail, started.checkpoint) is not None:
        tail.unreplicated = False
        tail.publish(
            start=0, end=0, end_entry=0, synced_end=0, synced_entry=0, visible=0, visible_entry=0, is_open=False
        )
    tail.begin(boot_id=boot_id(), uuid=uuid, pid=os.getpid())
    return tail
