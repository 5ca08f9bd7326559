"""Opens a node's log in the way that its role needs."""

from __future__ import annotations

from pyreplog._native.log.tail_page import PAGE, Tail
from pyreplog.ha.node_context import NodeContext
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import names, replica
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.files import boot_id
from pyreplog.regular_files import open_reading
from pyreplog.stream.fields import FieldWriter
from pyreplog.stream.mirror_log import MirrorLog
from pyreplog.stream.terms import Term, write_term

TERM_MARK = b"RPTERM"
"""Prefix of the first record of each term, a control record that the master appends."""


def holds_all_sent(context: NodeContext) -> bool:
    """Return whether the closed log of a master still holds all records that the master may have sent.

    It does if it was closed cleanly, if the machine has not rebooted since, or if only synced records are sent.
    """
    checkpoint = checkpoints.load(context.path)
    if checkpoint is None:
        return False
    if checkpoint.clean or context.terms.terms.lossless:
        return True
    page = context.path / names.TAIL
    if not page.exists() or page.stat().st_size < PAGE:
        return False
    with open_reading(page) as file:
        return Tail(file, writable=False).belongs_to(boot_id(), checkpoint.uuid)


def resume_or_resign(context: NodeContext) -> None:
    """Prepare to open a master's log: keep its role, or resign it if the log may lack records that were sent."""
    if context.terms.terms.is_master and not holds_all_sent(context):
        context.terms.resign()
    elif context.terms.terms.is_master:
        context.terms.resume(lossless=context.config.lossless)


def open_log(context: NodeContext) -> CommitLog:
    """Open the log of a master. Raises the errors of `pyreplog.open`.

    Retention waits until the master sets its floor: replicas that join soon may need any entry.
    """
    return _open(context, create=True)


def _open(context: NodeContext, *, create: bool) -> CommitLog:
    return CommitLog(
        context.path, context.config.log, create=create, clock=None, files=context.files, gated=True, retention_floor=0
    )  # fmt: skip


def open_mirror(context: NodeContext) -> MirrorLog | None:
    """Open the log of a replica; None: there is no log yet.

    The log of a former master becomes a copy. It is recovered as a log of its own first, because only then what its
    records say of the disk is true. Retention waits as in `open_log`.
    """
    path, files = context.path, context.files
    if not replica.is_replica(path):
        checkpoint = checkpoints.load(path)
        if checkpoint is None:
            files.make_directory(path)
            return None
        _open(context, create=False).close()
        replica.mark(path, files, checkpoint.uuid)
    elif checkpoints.load(path) is None:
        return None
    return MirrorLog(path, context.config.log, files=files, retention_floor=0)


def mark_term(log: CommitLog, term: Term) -> None:
    """Append the first record of a term. Until enough replicas have it, no entry of earlier terms is committed by
    counting copies (Raft, §5.4.2)."""
    fields = FieldWriter("<")
    write_term(fields, term)
    log.append_batch([], control=TERM_MARK + fields.take())
