"""What travels beside control bodies, and how all of it is shown."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyreplog.ha.protocol.messages import (
    Accept,
    Commit,
    Join,
    MembershipUpdate,
    MembersStored,
    Prepare,
    ProgressReport,
    Promise,
    Refuse,
    VoteRejected,
)
from pyreplog.stream.terms import History


class Data(NamedTuple):
    """Records of a log from number `first` on."""

    first: int
    records: tuple[str, ...]


def history(of: History) -> str:
    return " ".join(f"{term.number}{term.master}@{start.entry}" for term, start in of.starts)


def describe(message: Any) -> str:
    """For people."""
    if isinstance(message, Data):
        return f"records {message.first}..{message.first + len(message.records) - 1}: {' '.join(message.records)}"
    if isinstance(message, Join):
        role = "observer " if message.observer else ""
        ends = f"{message.received.entry}/{message.synced.entry}"
        return f"JOIN {role}{ends}, promised {message.promised}, [{history(message.history)}]"
    if isinstance(message, Accept):
        return f"ACCEPT term {message.term} at {message.resume.entry}, [{history(message.history)}]"
    if isinstance(message, ProgressReport):
        return f"PROGRESS {message.received.entry}/{message.synced.entry}"
    if isinstance(message, Commit):
        return f"COMMIT {message.committed.entry}{' alone' if message.unreplicated else ''}, from {message.start}"
    if isinstance(message, Promise):
        ends = f"{message.received.entry}/{message.synced.entry}"
        trial = "trial " if message.trial else ""
        return f"{trial}PROMISE {message.term}, {ends} [{history(message.history)}]"
    if isinstance(message, Prepare):
        return f"{'trial ' if message.trial else ''}PREPARE {message.term}"
    if isinstance(message, MembershipUpdate):
        return f"MEMBERS {message.members}"
    if isinstance(message, Refuse | VoteRejected):
        return f"{type(message).__name__.upper()} {message.text}"
    assert isinstance(message, MembersStored)
    return f"STORED members {message.version}"
