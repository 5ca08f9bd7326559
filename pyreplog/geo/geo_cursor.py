"""GeoCursor: the durable cursor of the replication of one topic to one target."""

from __future__ import annotations

import json
import threading
from typing import Any, NamedTuple

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import InvalidMetadataError
from pyreplog.geo.protocol.effects import Progress, TargetPosition
from pyreplog.origins.origin import GapCause, LastEntry, Origin
from pyreplog.topic.model.backlog import SYSTEM_PREFIX
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.system_cursor_record import SystemCursorRecord, stored_mark
from pyreplog.topic.owner.snapshot_cursor import SnapshotCursor, StateSnapshot
from pyreplog.topic.owner.topic_context import TopicContext

GEO_PREFIX = f"{SYSTEM_PREFIX}geo."
STORE_S = 0.5
"""Seconds between two stored states."""
OTHERS_MAX = 1024
"""Most other origins whose positions at the target are stored."""


def cursor_name(target: str) -> str:
    """Return the name of the cursor of a target cluster."""
    return f"{GEO_PREFIX}{target}"


class GeoState(NamedTuple):
    """The stored state of a replication: FORMAT.md, "System cursor record".

    Attributes:
        begin: offset where the target began.
        withheld: cause of the gap that covers the messages before `begin`.
        own: position that the target reported last in the messages published here; None: it was never reached.
        others: positions that it reported last in other origins.
        is_detached: whether the backlog grew beyond its bound: trimming does not wait for the target.
        token: token of the topic as an origin when `own` was reported; empty: the token of its first identity.
        cluster: id of the target, 32 hexadecimal digits; empty: an older version stored the state.
    """

    begin: int
    withheld: GapCause
    own: TargetPosition | None = None
    others: dict[Origin, TargetPosition] = {}  # noqa: RUF012 - never changed
    is_detached: bool = False
    token: str = ""
    cluster: str = ""

    def is_of(self, cluster: str) -> bool:
        """Return whether the state may be that of a cluster, and not of a former one of the same name.

        Args:
            cluster: id of the cluster; empty: it is not known.
        """
        return not cluster or self.cluster in ("", cluster)

    def to_bytes(self) -> bytes:
        """Encode the state."""
        others = [
            [origin.cluster.hex(), origin.token, *position]
            for origin, position in list(self.others.items())[:OTHERS_MAX]
        ]
        return json.dumps(
            {
                "version": 1, "begin": self.begin, "withheld": int(self.withheld), "own": self.own, "others": others,
                "detached": self.is_detached, **({"token": self.token} if self.token else {}),
                **({"cluster": self.cluster} if self.cluster else {}),
            }
        ).encode()  # fmt: skip

    @classmethod
    def from_bytes(cls, name: str, data: bytes) -> GeoState:
        """Decode a state; fields of a newer version are ignored. Raises InvalidMetadataError."""
        try:
            value: dict[str, Any] = json.loads(data)
            others = {Origin(bytes.fromhex(row[0]), str(row[1])): _decode_position(row[2:]) for row in value["others"]}
            own = None if value["own"] is None else _decode_position(value["own"])
            causes = {cause.value: cause for cause in GapCause}
            withheld = causes.get(value["withheld"], GapCause.LOST)
            token, cluster = str(value.get("token", "")), str(value.get("cluster", ""))
            return cls(int(value["begin"]), withheld, own, others, value["detached"] is True, token, cluster)
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise InvalidMetadataError(f"record of {name}: {error!r}") from error


def _decode_position(row: list[Any]) -> TargetPosition:
    stored, last = row
    return TargetPosition(int(stored), None if last is None else LastEntry(*map(int, last)))


def stored_position(name: str, snapshot: bytes, cluster: str) -> TopicPosition | None:
    """Return the position from a stored record below which a target has every message.

    Args:
        name: name of the cursor.
        snapshot: the record.
        cluster: id of the target; empty: it is not known.

    Returns:
        The position; None: it is not known, or the record is that of a former cluster of the same name.
    """
    mark = stored_mark(name, [snapshot]).mark
    if mark is None:
        return None
    try:
        state = GeoState.from_bytes(name, SystemCursorRecord.from_bytes(name, snapshot).state)
    except InvalidMetadataError:  # a newer version stored it
        return mark
    return mark if state.is_of(cluster) else None


class GeoCursor(SnapshotCursor):
    """Stores the position that the target reported last; trimming waits for the messages behind it.

    If the stored state is that of another cluster, which had the same name before, the target is a new one.

    Any thread may call its methods; `recover` waits.

    Args:
        context: the topic.
        target: name of the target cluster.
        is_latest: whether a new target begins with the next message, not with the first one.
        cluster: id of the target cluster, 32 hexadecimal digits; empty: it is not known.
    """

    needed_by = "the replication to another cluster"
    replays = False
    is_small = True

    def __init__(self, context: TopicContext, target: str, *, is_latest: bool, cluster: str = "") -> None:
        self._is_detached_stored = self._is_of_former = False
        super().__init__(context)
        self.name = cursor_name(target)
        self._is_latest, self._cluster = is_latest, cluster
        self._guard = threading.Lock()
        self._offset = 0
        self._state = GeoState(0, GapCause.EXPIRED)
        self._timer_is_set = self._is_over = False

    @property
    def state(self) -> GeoState:
        """The present state, which may not be stored yet."""
        return self._state

    @property
    def offset(self) -> int:
        """The target has every message below this offset here; the offset may not be stored yet."""
        return self._offset

    @property
    def mark(self) -> TopicPosition:
        """The stored position from which on messages are not trimmed."""
        return self._context.managed.end if self._is_detached_stored else self._mark

    @mark.setter
    def mark(self, mark: TopicPosition) -> None:
        self._mark = mark

    def recover(self) -> None:
        """Read the stored state; create the cursor if it does not exist."""
        managed = self._context.managed
        begin = managed.end if self._is_latest else managed.start
        self.create(begin)
        super().recover()
        if self._is_of_former:
            self.mark = begin
        self._offset = self.mark.offset
        if self._is_of_former:
            self.store()

    def _empty(self) -> bytes:
        return self._new_state().to_bytes()

    def _new_state(self) -> GeoState:
        managed = self._context.managed
        if self._is_latest:
            return GeoState(managed.end.offset, GapCause.FILTERED, cluster=self._cluster)
        return GeoState(managed.start.offset, GapCause.EXPIRED, cluster=self._cluster)

    def _restore(self, data: bytes) -> None:
        state = GeoState.from_bytes(self.name, data)
        self._is_of_former = not state.is_of(self._cluster)
        if self._is_of_former:
            state = self._new_state()
        self._state = state._replace(cluster=self._cluster or state.cluster)
        self._is_detached_stored = self._state.is_detached

    def _replay(self, batch: MessageBatch) -> None:
        """Do nothing: the target reports its position."""

    def _take(self) -> StateSnapshot | None:
        with self._guard:
            offset = self._context.managed.end.offset if self._state.is_detached else self._offset
            state = self._state
        return StateSnapshot(max(offset, self._context.managed.start.offset), state.to_bytes(), state)

    def _stored(self, snapshot: StateSnapshot) -> None:
        state: GeoState = snapshot.content
        self._is_detached_stored = state.is_detached

    def store_if_due(self) -> None:
        """Do nothing: a timer stores the progress."""

    # ---- changes ------------------------------------------------------------------------------------------------

    def progressed(self, progress: Progress, token: str) -> None:
        """Note the position of the target, and store it soon. token: as in `GeoState`."""
        with self._guard:
            self._offset = max(self._offset, progress.mark)
            self._state = self._state._replace(own=progress.own, others=progress.others, token=token)
            if self._timer_is_set or self._is_over:
                return
            self._timer_is_set = True
        self._context.runtime.wake_after(STORE_S, self._store_now)

    def _store_now(self) -> None:
        with self._guard:
            self._timer_is_set = False
            if self._is_over:
                return
        self.store()

    def renewed(self, token: str, former: Origin, begin: int) -> None:
        """Note that the topic has a new identity with a token. The target has every message here below `begin` under
        other identities; messages from `begin` on are kept.
        """
        with self._guard:
            state = self._state
            others = state.others if state.own is None else {**state.others, former: state.own}
            self._offset = begin
            self._state = state._replace(
                begin=begin, withheld=GapCause.DUPLICATE, own=None, others=others, token=token
            )  # fmt: skip
        self.store()

    def fall_back(self) -> None:
        """Note that the target may lack any message of this topic; it is stored with the next reported position."""
        with self._guard:
            self._offset = self._context.managed.start.offset

    def set_detached(self, is_detached: bool) -> None:
        """Note whether trimming goes on without the target."""
        with self._guard:
            self._state = self._state._replace(is_detached=is_detached)
        self.store()

    def close(self) -> None:
        """Stop storing the state."""
        with self._guard:
            self._is_over = True
        super().close()
