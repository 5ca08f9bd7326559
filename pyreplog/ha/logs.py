"""Opening a node's log in the way its role needs."""

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
"""What the control record begins with that a master appends first of all."""


def holds_all_sent(context: NodeContext) -> bool:
    """Whether a master's log that nobody has open still holds all that it may have sent: it was closed cleanly, or the
    kernel that ran then still does, or nothing is sent that is not on disk."""
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
    """Before a master's log is opened again: it leads on, or, when it may lack what it had sent, has to be elected."""
    if context.terms.terms.is_master and not holds_all_sent(context):
        context.terms.resign()
    elif context.terms.terms.is_master:
        context.terms.resume(lossless=context.config.lossless)


def open_log(context: NodeContext) -> CommitLog:
    """As a master does. Retention waits for its word: replicas that are about to come may need all that there is.
    Errors: those of `pyreplog.open`."""
    return _open(context, create=True)


def _open(context: NodeContext, *, create: bool) -> CommitLog:
    return CommitLog(
        context.path, context.config.log, create=create, clock=None, files=context.files, gated=True, retention_floor=0
    )  # fmt: skip


def open_mirror(context: NodeContext) -> MirrorLog | None:
    """As a replica does; None: there is none yet. What was a log of its own is a copy from now on: it is recovered as
    its own first, for what its records say of its disk is true. Retention waits, as of `open_log`."""
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
    """Append the first record of a term: until enough replicas have it, nothing of earlier terms is committed by
    counting copies (Raft, §5.4.2)."""
    fields = FieldWriter("<")
    write_term(fields, term)
    log.append_batch([], control=TERM_MARK + fields.take())
