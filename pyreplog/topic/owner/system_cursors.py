"""The system cursors of a topic: those that a part of this process moves, and stored ones that no part of it moves."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from pyreplog.cursors.subscription_metadata import (
    delete_subscription,
    load_subscription,
    owner_token,
    take_over,
)
from pyreplog.errors import (
    InvalidMetadataError,
    NoSuchSubscriptionError,
    NotEnoughBookiesError,
    SubscriptionBusyError,
    UnreadableError,
)
from pyreplog.future import AppendFuture, set_result, then
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.system_cursor_record import StoredMark, stored_mark
from pyreplog.topic.owner.subscriptions import JOURNAL
from pyreplog.topic.owner.topic_context import TopicContext

logger = logging.getLogger(__name__)

ADOPTED_PREFIX = "pyreplog.geo."
"""Prefix of cursors that a part of this process may adopt after the topic was opened; it may adopt `JOURNAL`, too."""


class SystemCursor(Protocol):
    """A system cursor that a part of the topic moves. Any thread may call its methods."""

    @property
    def name(self) -> str: ...
    @property
    def needed_by(self) -> str:
        """Why the topic has the cursor, for errors."""
        ...

    @property
    def mark(self) -> TopicPosition:
        """The mark as it is stored; messages from there on are not trimmed."""
        ...

    @property
    def cursor_ledger(self) -> int:
        """Ledger of the last stored state; -1: the metadata store."""
        ...

    def recover(self) -> None:
        """Read the stored state; create it if there is none. Blocks."""
        ...

    def follow(self, publisher: Publisher) -> None:
        """Use this publisher of the topic from now on."""
        ...

    def store_if_due(self) -> None:
        """Store the state if it is time to."""
        ...

    def store(self, *, is_last: bool = False) -> AppendFuture[None]:
        """Store the present state, which moves the mark. is_last: before the topic is closed."""
        ...

    def close(self) -> None:
        """Store nothing any more."""
        ...


class SystemCursorStatus(NamedTuple):
    """One system cursor, as trimming, quotas and statistics see it.

    Attributes:
        name: its name.
        mark: messages from here on are kept for it.
        state: "open": a part of this process moves it; "stored": no part does; "unknown": no part does, and its newest
            record cannot be understood.
        cursor_ledger: ledger of its last stored state; -1: the metadata store, or not known.
    """

    name: str
    mark: TopicPosition
    state: str
    cursor_ledger: int


class _StoredCursor(NamedTuple):
    """A stored cursor. owner: token for its deletion; None: it could not be taken over."""

    status: SystemCursorStatus
    owner: str | None


class SystemCursors:
    """The system cursors of one topic. Any thread; `recover` and `delete` wait for the metadata store.

    A stored cursor that no part of this process moves keeps messages nevertheless: a process of another version, which
    has such a part, may own the topic next.

    Args:
        context: the topic.
        live: the cursors that parts of this process move.
        obsolete: names of cursors that the topic does not need any more. They are deleted when it is opened.
        dormant: cursors that parts of this process move once they are stored: they are live if they are stored when the
            topic is opened, and otherwise from `begin` on.
    """

    def __init__(
        self,
        context: TopicContext,
        live: Sequence[SystemCursor],
        obsolete: Collection[str],
        dormant: Sequence[SystemCursor] = (),
    ) -> None:
        self._context, self._obsolete = context, obsolete
        self._live = {cursor.name: cursor for cursor in live}
        self._dormant = {cursor.name: cursor for cursor in dormant}
        self._lock = threading.Lock()  # held while the tables change; never while anything waits
        self._changing = threading.Lock()  # held while a cursor is deleted
        self._stored: dict[str, _StoredCursor] = {}

    def recover(self, names: Iterable[str]) -> None:
        """Recover the live cursors, and find the mark of each other one that is stored.

        names: the stored system cursors of the topic. Raises the errors of the live cursors, TopicFencedError, and
        errors of the metadata store.
        """
        for name in names:
            if name in self._dormant:
                self._live[name] = self._dormant[name]
            if name in self._live or (name in self._obsolete and self._delete_obsolete(name)):
                continue
            stored = self._read(name)
            if stored is not None:
                self._stored[name] = stored
        for cursor in self._live.values():
            cursor.recover()

    def begin(self, cursor: SystemCursor) -> None:
        """Note that a dormant cursor was stored, and is moved from now on."""
        with self._lock:  # two may begin at a time
            self._live = {**self._live, cursor.name: cursor}  # a copy: others may be reading the table

    def adopt(self, cursor: SystemCursor, *, if_: Callable[[], bool] = lambda: True) -> bool:
        """Recover a cursor, and have this process move it from now on, in place of one with its name. Blocks.

        Until it is recovered, the stored one keeps messages. Raises the errors of its `recover`.

        if_: called while no other cursor is adopted or removed; False: do nothing, and return False.
        """
        with self._changing:
            if not if_():
                return False
            self._context.managed.verify()  # otherwise the cursor may be that of the next owner
            cursor.recover()
            self.begin(cursor)
            with self._lock:
                self._stored.pop(cursor.name, None)
        return True

    def remove(self, name: str, adopted: Collection[SystemCursor]) -> bool:
        """Delete a cursor that was adopted, or is stored, so that it keeps no messages any more. Blocks.

        Returns False, and does nothing, if another object is live under the name. Raises the errors of `delete`.

        adopted: all objects of the caller that `adopt` was called with; one of them may be live.
        """
        with self._changing:
            live = self._live.get(name)
            if live is not None and not any(live is cursor for cursor in adopted):
                return False
            if live is not None:
                live.close()
            self._delete(name, None)
            with self._lock:
                self._live = {other: kept for other, kept in self._live.items() if other != name}
                self._stored.pop(name, None)
        self._context.touch()
        return True

    def _delete_obsolete(self, name: str) -> bool:
        """Delete an obsolete cursor. Returns False, and leaves it, if its metadata cannot be decoded."""
        context = self._context
        owner = owner_token(secrets.token_hex(8), 0, context.managed.topic_epoch)
        try:
            take_over(context.metadata, context.name, name, owner)
        except InvalidMetadataError:
            return False
        except NoSuchSubscriptionError:
            return True
        self._delete(name, owner)
        logger.info("topic %s: the cursor %s was deleted, because the topic does not need it", context.name, name)
        return True

    def _read(self, name: str) -> _StoredCursor | None:
        """Take a stored cursor over, and find its mark; None: it was deleted meanwhile."""
        context, owner = self._context, None
        managed, ledger = context.managed, -1
        try:
            recovered = context.cursors.recover(context.name, name, epoch=managed.topic_epoch)
            owner, ledger = recovered.owner, recovered.metadata.cursor_ledger
            stored = stored_mark(name, [*recovered.records[-1:], recovered.metadata.snapshot], managed.end)
        except NoSuchSubscriptionError:
            return None
        except InvalidMetadataError as error:
            stored = StoredMark(None, str(error))
        except (UnreadableError, NotEnoughBookiesError) as error:
            metadata = load_subscription(context.metadata, context.name, name)
            ledger = metadata.cursor_ledger
            stored = StoredMark(stored_mark(name, [metadata.snapshot], managed.end).mark, str(error))
        mark = managed.start if stored.mark is None else max(stored.mark, managed.start)
        if stored.problem or not (name.startswith(ADOPTED_PREFIX) or name == JOURNAL):
            self._warn_of_stored(name, mark, stored.problem)
        return _StoredCursor(SystemCursorStatus(name, mark, "unknown" if stored.problem else "stored", ledger), owner)

    def _warn_of_stored(self, name: str, mark: TopicPosition, problem: str) -> None:
        if problem:
            logger.warning(
                "topic %s: the stored cursor %s cannot be read, so all messages from offset %d on are kept; serve the "
                "topic with the version of pyreplog that wrote the cursor, or delete it with delete_subscription: %s",
                self._context.name, name, mark.offset, problem,
            )  # fmt: skip
        else:
            logger.warning(
                "topic %s: all messages from offset %d on are kept for the cursor %s, which no part of this process "
                "moves; serve the topic with the version of pyreplog that made the cursor, or delete it with "
                "delete_subscription",
                self._context.name, mark.offset, name,
            )  # fmt: skip

    # ---- what others ask ----------------------------------------------------------------------------------------

    def all(self) -> list[SystemCursorStatus]:
        """Return all system cursors, live and stored ones."""
        with self._lock:  # both: a cursor that is being adopted is in one of them
            live, stored = self._live.values(), [known.status for known in self._stored.values()]
        return [
            *(SystemCursorStatus(cursor.name, cursor.mark, "open", cursor.cursor_ledger) for cursor in live), *stored,
        ]  # fmt: skip

    def follow(self, publisher: Publisher) -> None:
        """Have the live cursors use this publisher of the topic."""
        for cursor in self._live.values():
            cursor.follow(publisher)

    def store_if_due(self) -> None:
        """Store the live cursors for which it is time."""
        for cursor in self._live.values():
            cursor.store_if_due()

    def catch_up(self, names: Iterable[str]) -> None:
        """Store those live cursors of these names, because publishers may have to wait for them."""
        for name in names:
            if name in self._live:
                self._live[name].store()

    def store_after(self, flushed: AppendFuture[None]) -> list[AppendFuture[None]]:
        """Store each live cursor once `flushed` is done; return a future for each."""
        return [_store_after(cursor, flushed) for cursor in self._live.values()]

    # ---- the end --------------------------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        """Delete a stored cursor, so that it keeps no messages any more.

        Raises NoSuchSubscriptionError if there is none; SubscriptionBusyError if a part of this process moves it;
        TopicFencedError if another process owns the topic now; errors of the metadata store.
        """
        topic = self._context.name
        with self._changing:
            if name in self._live:
                raise SubscriptionBusyError(
                    topic, f"cursor {name} is in use, because of {self._live[name].needed_by}: switch that off, and "
                    "open the topic again",
                )  # fmt: skip
            with self._lock:
                stored = self._stored.get(name)
            if stored is None:
                raise NoSuchSubscriptionError(topic, f"there is no cursor {name}")
            self._delete(name, stored.owner)
            with self._lock:
                del self._stored[name]
        self._context.touch()  # messages may be trimmed now, or publishers go on

    def _delete(self, name: str, owner: str | None) -> None:
        self._context.managed.verify()  # otherwise the cursor may be that of the next owner
        with suppress(NoSuchSubscriptionError):  # an earlier attempt with an unknown outcome deleted it
            delete_subscription(self._context.metadata, self._context.name, name, owner)

    def close(self) -> None:
        """Have the live cursors store nothing any more."""
        for cursor in self._live.values():
            cursor.close()


def _store_after(cursor: SystemCursor, flushed: AppendFuture[None]) -> AppendFuture[None]:
    kept: AppendFuture[None] = AppendFuture()
    flushed.add_done_callback(lambda _: then(cursor.store(is_last=True), kept, partial(set_result, kept)))
    return kept
