"""The messages between clusters about replicated subscriptions, as bytes: FORMAT.md, "Replicated subscriptions".

Every length is checked against the remaining bytes and against a bound before it is believed. Items of unknown kinds
are kept unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from pyreplog._native.topic.range_set import OFFSET_END, RangeSet
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError, MetadataVersionError
from pyreplog.geo.acks.origin_ranges import OriginRanges
from pyreplog.geo.acks.subscription_state import Generation, Home, SubscriptionState
from pyreplog.origins.origin import CLUSTER_BYTES, TOKEN_BYTES_MAX, LastEntry, Origin, OriginState

VERSION: Final = 1
MESSAGE_BYTES_MAX: Final = 16 << 20
NAME_BYTES_MAX: Final = 255
TOKENS_MAX: Final = 256
"""Most births of one subscription: clusters that created it before they knew of each other."""
CLUSTERS_MAX: Final = 1024
BASE_BYTES_MAX: Final = 8 << 20
"""Most bytes of the bases of one subscription."""
BITS_MIN: Final = 8
"""Least bits of an offset within a block of a digest."""
COUNTER_MAX: Final = (1 << 63) - 1

SUMMARY, DIGEST, DELTA, STORED, HISTORY, CONNECTED, STARTS = 1, 2, 3, 4, 5, 6, 7
STATE, ACKS, TOMBSTONE, FORGOTTEN = 1, 2, 3, 4
LAST, KNOWS_HISTORIES, KNOWS_STARTS = 1, 2, 4
SAME, OTHER = 1, 2

_HEAD = struct.Struct("<BBHIQ")  # version, kind, flags, count, session
_SEQUENCE = struct.Struct("<Q")
_ITEM = struct.Struct("<BBHI")  # kind, zero, bytes of the name, bytes of the body
_POSITION = struct.Struct("<qqqIq")  # stored; of the last entry: first, -1: there is none; end, CRC-32C, publish time
_LINE = struct.Struct("<8sqBxH")  # identity, prefix, bits of an offset within its block, blocks
_BLOCK = struct.Struct("<q8s")
_STATE = struct.Struct("<Q16sQ16sHH")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_GENERATION = struct.Struct("<Q16s")
_OFFSET = struct.Struct("<q")
_NO_ENTRY = LastEntry(-1, 0, 0, 0)


class StateItem(NamedTuple):
    """A subscription without its acknowledgements."""

    name: str
    tokens: tuple[str, ...]
    generation: Generation
    home: Home
    bases: OriginRanges

    @classmethod
    def of(cls, name: str, state: SubscriptionState) -> StateItem:
        """Return the item of the present state."""
        return cls(name, tuple(sorted(state.tokens)), state.generation, state.home, state.bases.copy())

    def state(self) -> SubscriptionState:
        """Return the state without acknowledgements."""
        return SubscriptionState(frozenset(self.tokens), self.generation, self.home, self.bases)


class AcksItem(NamedTuple):
    """Acknowledged messages of one origin, in one generation of the subscription that has a birth with this token."""

    name: str
    token: str
    generation: Generation
    origin: Origin
    ranges: RangeSet


class TombstoneItem(NamedTuple):
    """A dead birth, and the clusters that have its tombstone durably."""

    name: str
    token: str
    confirmed: frozenset[bytes]


class ForgottenItem(NamedTuple):
    """In journals alone: a tombstone was removed, because every cluster has it."""

    name: str
    token: str


class UnknownItem(NamedTuple):
    """An item of a later version, which is kept."""

    kind: int
    name: str
    body: bytes


Item: TypeAlias = StateItem | AcksItem | TombstoneItem | ForgottenItem | UnknownItem


class DigestLine(NamedTuple):
    """Digests of one subscription's acknowledgements of an origin.

    Attributes:
        name: name of the subscription.
        identity: `SubscriptionState.acks_identity`.
        prefix: all offsets below this one are acknowledged.
        bits: bits of an offset within its block.
        blocks: (block, digest) of each block with acknowledged messages from the prefix on, ascending.
    """

    name: str
    identity: bytes
    prefix: int
    bits: int
    blocks: tuple[tuple[int, bytes], ...]


class Summary(NamedTuple):
    """Names with digests of their lifecycles: the first messages of a session."""

    session: int
    digests: tuple[tuple[str, bytes], ...]
    is_last: bool
    knows_histories: bool = True  # whether its sender takes `History` and `Connected`: older ones end the connection
    knows_starts: bool = True  # likewise `StartOffsets`


class Digest(NamedTuple):
    """Digests of acknowledgements of an origin. After the last one the receiver may send acknowledgements of it."""

    session: int
    origin: Origin
    lines: tuple[DigestLine, ...]
    is_last: bool


class Delta(NamedTuple):
    """Items for the receiver, which stores them durably before it answers."""

    session: int
    sequence: int
    items: tuple[Item, ...]


class Stored(NamedTuple):
    """All deltas up to `sequence` are durable at the sender of the message."""

    session: int
    sequence: int


class History(NamedTuple):
    """The sender's position in an origin of a third cluster, by which both compare their histories of it.

    Attributes:
        session: session of the connection.
        origin: the origin.
        state: the sender's position.
        is_same: the receiver's last entry, as it reported it, is the sender's entry there; False: it is another one;
            None: it was not compared.
    """

    session: int
    origin: Origin
    state: OriginState
    is_same: bool | None = None


class Connected(NamedTuple):
    """The other clusters that the sender is connected to now; they get its acknowledgements from itself."""

    session: int
    clusters: frozenset[bytes]


class StartOffsets(NamedTuple):
    """The messages that the sender has removed.

    Attributes:
        session: session of the connection.
        clusters: the other clusters that the topic is replicated in, as far as the sender knows, without the receiver.
        starts: for each origin, the offset below which the sender stores no message, and will get none.
    """

    session: int
    clusters: frozenset[bytes]
    starts: tuple[tuple[Origin, int], ...]


Message: TypeAlias = Summary | Digest | Delta | Stored | History | Connected | StartOffsets


# ---- encoding --------------------------------------------------------------------------------------------------


def text_bytes(text: str, limit: int, noun: str) -> bytes:
    """Return the UTF-8 of a text with its length in front. Raises InvalidArgumentError if it is too long."""
    data = text.encode()
    if not 1 <= len(data) <= limit:
        raise InvalidArgumentError(f"{noun}: expected 1 to {limit} bytes of UTF-8, found {len(data)}")
    return _U16.pack(len(data)) + data


def _origin_bytes(origin: Origin) -> bytes:
    return origin.cluster + text_bytes(origin.token, TOKEN_BYTES_MAX, "token of a topic")


def _body(item: Item) -> tuple[int, bytes]:
    match item:
        case StateItem():
            bases = sorted(item.bases.dump().items())
            if len(item.tokens) > TOKENS_MAX or sum(len(data) for _, data in bases) > BASE_BYTES_MAX:
                raise InvalidArgumentError(
                    f"subscription {item.name!r}: expected at most {TOKENS_MAX} births and {BASE_BYTES_MAX} bytes of "
                    f"bases, found {len(item.tokens)} and {sum(len(data) for _, data in bases)}"
                )
            parts = [_STATE.pack(*item.generation, *item.home, len(item.tokens), len(bases))]
            parts += [text_bytes(token, TOKEN_BYTES_MAX, "token") for token in item.tokens]
            for origin, data in bases:
                parts += (_origin_bytes(origin), _U32.pack(len(data)), data)
            return STATE, b"".join(parts)
        case AcksItem():
            data = item.ranges.dump()
            token = text_bytes(item.token, TOKEN_BYTES_MAX, "token")
            return ACKS, b"".join(
                (_GENERATION.pack(*item.generation), token, _origin_bytes(item.origin), _U32.pack(len(data)), data)
            )
        case TombstoneItem():
            clusters = sorted(item.confirmed)
            token = text_bytes(item.token, TOKEN_BYTES_MAX, "token")
            return TOMBSTONE, token + _U16.pack(len(clusters)) + b"".join(clusters)
        case ForgottenItem():
            return FORGOTTEN, text_bytes(item.token, TOKEN_BYTES_MAX, "token")
        case UnknownItem():
            return item.kind, item.body


def encode_items(items: Iterable[Item]) -> Iterator[bytes]:
    """Encode items one by one. Raises InvalidArgumentError if one exceeds a bound."""
    for item in items:
        name = text_bytes(item.name, NAME_BYTES_MAX, "name of a subscription")[2:]
        kind, body = _body(item)
        yield _ITEM.pack(kind, 0, len(name), len(body)) + name + body


def encode(message: Message) -> bytes:
    """Encode a message. Raises InvalidArgumentError if it exceeds a bound."""
    match message:
        case Summary(session, digests, is_last, knows_histories, knows_starts):
            flags = (LAST if is_last else 0) | (KNOWS_HISTORIES if knows_histories else 0)
            flags |= KNOWS_STARTS if knows_starts else 0
            parts = [_HEAD.pack(VERSION, SUMMARY, flags, len(digests), session)]
            parts += [text_bytes(name, NAME_BYTES_MAX, "name of a subscription") + digest for name, digest in digests]
        case Digest(session, origin, lines, is_last):
            parts = [_HEAD.pack(VERSION, DIGEST, LAST if is_last else 0, len(lines), session), _origin_bytes(origin)]
            for line in lines:
                parts.append(text_bytes(line.name, NAME_BYTES_MAX, "name of a subscription"))
                parts.append(_LINE.pack(line.identity, line.prefix, line.bits, len(line.blocks)))
                parts += [_BLOCK.pack(*block) for block in line.blocks]
        case Delta(session, sequence, items):
            encoded = [*encode_items(items)]
            parts = [_HEAD.pack(VERSION, DELTA, 0, len(encoded), session), _SEQUENCE.pack(sequence), *encoded]
        case Stored(session, sequence):
            parts = [_HEAD.pack(VERSION, STORED, 0, 0, session), _SEQUENCE.pack(sequence)]
        case History(session, origin, state, is_same):
            flags = 0 if is_same is None else SAME if is_same else OTHER
            position = _POSITION.pack(state.stored, *(state.last or _NO_ENTRY))
            parts = [_HEAD.pack(VERSION, HISTORY, flags, 0, session), _origin_bytes(origin), position]
        case Connected(session, clusters):
            parts = [_HEAD.pack(VERSION, CONNECTED, 0, len(clusters), session), *sorted(clusters)]
        case StartOffsets(session, clusters, starts):
            parts = [_HEAD.pack(VERSION, STARTS, 0, len(starts), session), _U16.pack(len(clusters)), *sorted(clusters)]
            for origin, start in starts:
                parts += (_origin_bytes(origin), _OFFSET.pack(start))
    data = b"".join(parts)
    if len(data) > MESSAGE_BYTES_MAX:
        raise InvalidArgumentError(f"message: expected at most {MESSAGE_BYTES_MAX} bytes, found {len(data)}")
    return data


# ---- decoding --------------------------------------------------------------------------------------------------


class Cursor:
    """Reads fields one after the other, and refuses to read behind the end."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data, self.at = data, at
        self.end = len(data) if end is None else end

    def fields(self, layout: struct.Struct) -> tuple[int | bytes, ...]:
        """Read the fields of a struct."""
        at = self.advance(layout.size)
        return layout.unpack_from(self.data, at)

    def number(self, layout: struct.Struct, limit: int, noun: str) -> int:
        """Read one number, at most `limit`."""
        at = self.at
        (number,) = self.fields(layout)
        if not isinstance(number, int) or number > limit:
            raise InvalidRecordsError(at, f"at most {limit} {noun}", str(number))
        return number

    def take(self, size: int) -> bytes:
        """Read `size` bytes."""
        at = self.advance(size)
        return self.data[at : at + size]

    def advance(self, size: int) -> int:
        """Skip `size` bytes; return the offset of the first one."""
        if size > self.end - self.at:
            raise InvalidRecordsError(self.at, f"{size} bytes more", f"{self.end - self.at}")
        self.at += size
        return self.at - size

    def text(self, limit: int, noun: str, size: int | None = None) -> str:
        """Read a text of 1 to `limit` bytes, after its length unless `size` gives it."""
        at = self.at
        if size is None:
            size = self.number(_U16, limit, f"bytes of a {noun}")
        if not 1 <= size <= limit:
            raise InvalidRecordsError(at, f"a {noun} of 1 to {limit} bytes", f"{size}")
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise InvalidRecordsError(at, f"a {noun} in UTF-8", str(error)) from error

    def origin(self) -> Origin:
        """Read an origin."""
        return Origin(self.take(CLUSTER_BYTES), self.text(TOKEN_BYTES_MAX, "token of a topic"))

    def ranges(self, limit: int) -> RangeSet:
        """Read a range set of at most `limit` bytes, after its length."""
        return RangeSet.load(self.take(self.number(_U32, limit, "bytes of ranges")))

    def generation(self) -> Generation:
        """Read a generation."""
        counter, cluster = self.fields(_GENERATION)
        assert isinstance(counter, int) and isinstance(cluster, bytes)
        return Generation(self.counter(counter), cluster)

    def counter(self, counter: int | bytes) -> int:
        """Check a counter."""
        if not isinstance(counter, int) or counter > COUNTER_MAX:
            raise InvalidRecordsError(self.at, f"a counter up to {COUNTER_MAX}", str(counter))
        return counter


def _decode_state(name: str, body: Cursor) -> StateItem:
    counter, sought, number, home, tokens_count, bases_count = body.fields(_STATE)
    assert isinstance(sought, bytes) and isinstance(home, bytes)
    assert isinstance(tokens_count, int) and isinstance(bases_count, int)
    if not 1 <= tokens_count <= TOKENS_MAX:
        raise InvalidRecordsError(body.at, f"1 to {TOKENS_MAX} births", str(tokens_count))
    tokens = tuple(body.text(TOKEN_BYTES_MAX, "token") for _ in range(tokens_count))
    bases = OriginRanges()
    for _ in range(bases_count):
        origin = body.origin()
        bases.add(origin, *body.ranges(BASE_BYTES_MAX).intersect())
    generation = Generation(body.counter(counter), sought)
    return StateItem(name, tokens, generation, Home(body.counter(number), home), bases)


def _decode_item(kind: int, name: str, body: Cursor) -> Item:
    match kind:
        case 1:
            return _decode_state(name, body)
        case 2:
            generation = body.generation()
            token = body.text(TOKEN_BYTES_MAX, "token")
            return AcksItem(name, token, generation, body.origin(), body.ranges(MESSAGE_BYTES_MAX))
        case 3:
            token = body.text(TOKEN_BYTES_MAX, "token")
            count = body.number(_U16, CLUSTERS_MAX, "clusters")
            return TombstoneItem(name, token, frozenset(body.take(CLUSTER_BYTES) for _ in range(count)))
        case 4:
            return ForgottenItem(name, body.text(TOKEN_BYTES_MAX, "token"))
        case _:
            return UnknownItem(kind, name, body.take(body.end - body.at))


def decode_items(cursor: Cursor, count: int) -> Iterator[Item]:
    """Decode `count` items. Raises InvalidRecordsError if they are malformed."""
    for _ in range(count):
        kind, _, name_size, size = cursor.fields(_ITEM)
        assert isinstance(kind, int) and isinstance(name_size, int) and isinstance(size, int)
        name = cursor.text(NAME_BYTES_MAX, "name of a subscription", name_size)
        begin = cursor.advance(size)
        yield _decode_item(kind, name, Cursor(cursor.data, begin, begin + size))


def _decode_line(cursor: Cursor) -> DigestLine:
    name = cursor.text(NAME_BYTES_MAX, "name of a subscription")
    identity, prefix, bits, count = cursor.fields(_LINE)
    assert isinstance(identity, bytes) and isinstance(prefix, int) and isinstance(bits, int) and isinstance(count, int)
    if not (0 <= prefix <= OFFSET_END and BITS_MIN <= bits < 62):
        raise InvalidRecordsError(
            cursor.at, f"a prefix of 0 to {OFFSET_END}, and {BITS_MIN} to 61 bits", f"{prefix}, {bits}"
        )
    begin = cursor.advance(count * _BLOCK.size)
    blocks: list[tuple[int, bytes]] = [*_BLOCK.iter_unpack(cursor.data[begin : begin + count * _BLOCK.size])]
    return DigestLine(name, identity, prefix, bits, tuple(blocks))


def _decode_offset(cursor: Cursor) -> int:
    at = cursor.at
    (offset,) = cursor.fields(_OFFSET)
    if not isinstance(offset, int) or not 0 <= offset <= OFFSET_END:
        raise InvalidRecordsError(at, f"an offset of 0 to {OFFSET_END}", str(offset))
    return offset


def _decode_position(cursor: Cursor) -> OriginState:
    at = cursor.at
    fields = cursor.fields(_POSITION)
    stored, *entry = (field for field in fields if isinstance(field, int))
    last = LastEntry(*entry)
    if not 0 <= stored <= OFFSET_END or not (last.first < 0 or last.first < last.end <= stored):
        raise InvalidRecordsError(at, "a position with its last entry below it", f"{stored} and {last}")
    return OriginState(stored, last if last.first >= 0 else None)


def decode(data: bytes) -> Message:
    """Decode a message.

    Raises:
        InvalidRecordsError: the message is malformed, or exceeds a bound.
        MetadataVersionError: the message has a version that this one cannot read.
    """
    if len(data) > MESSAGE_BYTES_MAX:
        raise InvalidRecordsError(0, f"at most {MESSAGE_BYTES_MAX} bytes", str(len(data)))
    cursor = Cursor(data)
    version, kind, flags, count, session = cursor.fields(_HEAD)
    assert isinstance(version, int) and isinstance(count, int) and isinstance(session, int) and isinstance(flags, int)
    if version != VERSION:
        raise MetadataVersionError("message about subscriptions", version, VERSION)
    if count > len(data) // 8:
        raise InvalidRecordsError(4, f"a count that {len(data)} bytes can hold", str(count))
    message: Message
    match kind:
        case 1:
            digests = [(cursor.text(NAME_BYTES_MAX, "name of a subscription"), cursor.take(8)) for _ in range(count)]
            knows_histories, knows_starts = bool(flags & KNOWS_HISTORIES), bool(flags & KNOWS_STARTS)
            message = Summary(session, tuple(digests), bool(flags & LAST), knows_histories, knows_starts)
        case 2:
            origin = cursor.origin()
            lines = tuple(_decode_line(cursor) for _ in range(count))
            message = Digest(session, origin, lines, bool(flags & LAST))
        case 3:
            sequence = cursor.number(_SEQUENCE, COUNTER_MAX, "as a sequence")
            message = Delta(session, sequence, tuple(decode_items(cursor, count)))
        case 4:
            message = Stored(session, cursor.number(_SEQUENCE, COUNTER_MAX, "as a sequence"))
        case 5:
            origin, state = cursor.origin(), _decode_position(cursor)
            message = History(session, origin, state, bool(flags & SAME) if flags & (SAME | OTHER) else None)
        case 6:
            message = Connected(session, frozenset(cursor.take(CLUSTER_BYTES) for _ in range(count)))
        case 7:
            size = cursor.number(_U16, CLUSTERS_MAX, "clusters")
            clusters = frozenset(cursor.take(CLUSTER_BYTES) for _ in range(size))
            starts = tuple((cursor.origin(), _decode_offset(cursor)) for _ in range(count))
            message = StartOffsets(session, clusters, starts)
        case _:
            raise InvalidRecordsError(1, "a kind of 1 to 7", str(kind))
    if cursor.at != len(data):
        raise InvalidRecordsError(cursor.at, "the end of the message", f"{len(data) - cursor.at} bytes more")
    return message


def split_ranges(ranges: RangeSet, most: int) -> Sequence[RangeSet]:
    """Split a set into sets of at most `most` ranges."""
    parts = []
    for starts, ends in ranges.chunks(most):
        part = RangeSet()
        part.add_ranges(starts, ends)
        parts.append(part)
    return parts
