"""Requests and replies between clients and topic servers, and their encoding (FORMAT.md, "Topics over TCP").

The offset of a frame pairs a reply with its request. The client chooses the handles of producer sessions and consumers,
and uses none twice: a handle of a lost connection is unknown on the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog import errors
from pyreplog._native.topic.wire_fields import Layout, WireReader, checksum
from pyreplog.errors import (
    InvalidMessageError,
    LedgerError,
    PeerError,
    ReplogError,
    TopicError,
    UnsupportedRequestError,
)
from pyreplog.origins.origin import Gap, OriginEntry
from pyreplog.topic.model.positions import Start
from pyreplog.topic.model.wire.fields import (
    CHECKSUM_BYTES,
    COUNT,
    ENTRIES,
    FLAG,
    I32,
    I64,
    NAME,
    OFFSET,
    OFFSET_OR_NONE,
    OFFSETS,
    RANGES,
    START,
    TEXT,
    U32,
)
from pyreplog.topic.model.wire.origins import CLUSTER, GAPS, LISTS, MESSAGES, ORIGIN_ENTRIES, PARTITIONS

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


VERSION = 4
"""Version in the hello. 2: RESUME, and checksums; 3: NACK_WITH_REASON; 4: features in the hello, unknown requests are
refused."""
EXTENDED_FROM = 4
ORIGINS = "origins"
"""Feature of the hello: OPEN_ORIGIN and REPLICATE."""
SUBSCRIPTIONS = "subscriptions"
"""Feature of the hello: EXCHANGE."""
REPLICATE_TO = "replicate-to"
"""Feature of the hello: PUBLISH_TO and REPLICATE_TO."""
FEATURES = frozenset({ORIGINS, SUBSCRIPTIONS, REPLICATE_TO})

OK, ERROR, STALE = range(3)
"""Status of a reply. STALE: the server does not know the producer session or consumer any more; nothing was done."""


class Open(NamedTuple):
    """Open a topic at its owner, and a session to publish to it.

    Attributes:
        producer: name of the session's producer, "": unnamed. If the topic deduplicates, sessions of other clients for
            that producer end.
        client: id of the client.
    """

    session: int
    create: bool
    topic: str
    producer: str
    client: str
    settings: str


class CloseProducer(NamedTuple):
    """Close a producer session."""

    session: int


class Publish(NamedTuple):
    """Publish entries as `encode_messages` returns them."""

    session: int
    entries: Sequence[bytes]


class PublishTo(NamedTuple):
    """Publish entries as Publish does, some of which go only to named clusters.

    For peers with the feature REPLICATE_TO. replicate_to: the replicate-to attribute of each entry; None: it has none.
    """

    session: int
    replicate_to: Sequence[bytes | None]
    entries: Sequence[bytes]


class Subscribe(NamedTuple):
    """Attach a consumer; settings: JSON, "": do not change them."""

    consumer: int
    priority: int
    durable: bool
    start: Start
    topic: str
    subscription: str
    name: str
    settings: str


class Detach(NamedTuple):
    consumer: int


class Flow(NamedTuple):
    """Add a number of messages to a consumer's permits."""

    consumer: int
    messages: int


class Fetch(NamedTuple):
    """Wait for messages, or for a change of the consumer's state."""

    consumer: int


class Acknowledge(NamedTuple):
    """Acknowledge messages. generation: of the consumer, as it knows it; acknowledgements from before a seek do not
    count.
    """

    consumer: int
    generation: int
    offsets: NDArray[np.int64]


class AcknowledgeRange(NamedTuple):
    """Acknowledge messages as Acknowledge does."""

    consumer: int
    generation: int
    start: int
    end: int


class AcknowledgeAndFetch(NamedTuple):
    """Do an AcknowledgeRange and a Fetch, so that a consumer of single messages sends one request for each, not two."""

    consumer: int
    generation: int
    start: int
    end: int


class Resume(NamedTuple):
    """Repeat the acknowledgements of lost connections that no flush has confirmed.

    These are all messages below `end`, and the half-open ranges in the rows of `ranges`. They count only in that era;
    0: in no era. From then on the replies of the consumer contain the era.
    """

    consumer: int
    era: int
    end: int
    ranges: NDArray[np.int64]


class AcknowledgeCumulative(NamedTuple):
    """Acknowledge messages as Acknowledge does."""

    consumer: int
    generation: int
    end: int


class Nack(NamedTuple):
    """Refuse messages. delay_us: -1: the back-off of the subscription."""

    consumer: int
    delay_us: int
    offsets: NDArray[np.int64]


class NackWithReason(NamedTuple):
    """Refuse messages as Nack does. reason: text of the consumer. For peers of version 3."""

    consumer: int
    delay_us: int
    reason: str
    offsets: NDArray[np.int64]


class Redeliver(NamedTuple):
    consumer: int


class Seek(NamedTuple):
    consumer: int
    start: Start


class Flush(NamedTuple):
    consumer: int


class ReadRequest(NamedTuple):
    """Read entries from the one that holds `offset` up to `end`, about `bytes_max` bytes."""

    offset: int
    end: int
    bytes_max: int
    topic: str


class OpenOrigin(NamedTuple):
    """Open a topic at its owner, and a session of an origin that is replicated into it.

    Sessions of the origin with lower numbers are fenced; one with the same number continues. For peers with the feature
    ORIGINS.

    Attributes:
        handle: handle of the session; the client uses none twice.
        create: create the topic if it does not exist.
        partitions: if the topic is a partition, the number of partitions of its topic; otherwise 0.
        cluster: id of the origin's cluster.
        token: token of the origin's topic.
        settings: settings of a topic that is created, JSON.
    """

    handle: int
    session: int
    create: bool
    partitions: int
    cluster: bytes
    topic: str
    token: str
    settings: str


class Replicate(NamedTuple):
    """Store entries of an origin, undecoded, and gaps behind them. For peers with the feature ORIGINS."""

    handle: int
    gaps: Sequence[Gap]
    entries: Sequence[OriginEntry]


class ReplicateTo(NamedTuple):
    """Store entries of an origin as Replicate does, some of which go only to named clusters.

    For peers with the feature REPLICATE_TO. replicate_to: as in PublishTo; that of `entries` is not sent.
    """

    handle: int
    gaps: Sequence[Gap]
    replicate_to: Sequence[bytes | None]
    entries: Sequence[OriginEntry]


class Exchange(NamedTuple):
    """Pass on the messages of the sender's cluster about the replicated subscriptions of a topic.

    For peers with the feature SUBSCRIPTIONS. The answer has the messages of the other cluster; it may come late, but
    not behind the next request of the session. The last entry of the receiver's topic that the sender has stored is
    given by `first`, `end`, `value_crc` and `publish_time_us`; `first` is -1 if there is none.

    Attributes:
        session: number of the session, which is never used twice.
        number: number of the request in the session, from 0 on.
        is_proved: the receiver has the same messages of the sender's topic.
        stored: all messages of the receiver's topic below it are stored at the sender, or lie in a gap; -1: unknown.
        cluster: cluster of the sender's topic.
        token: token of the sender's topic.
        messages: see FORMAT.md, "Replicated subscriptions".
    """

    session: int
    number: int
    is_proved: bool
    stored: int
    first: int
    end: int
    value_crc: int
    publish_time_us: int
    cluster: bytes
    topic: str
    token: str
    messages: Sequence[bytes]


class Call(NamedTuple):
    """Make any other call by name, with JSON arguments; topic: "": none."""

    topic: str
    name: str
    arguments: str


Request = (
    Open | CloseProducer | Publish | Subscribe | Detach | Flow | Fetch | Acknowledge | AcknowledgeRange
    | AcknowledgeAndFetch
    | AcknowledgeCumulative | Nack | NackWithReason | Redeliver | Seek | Flush | ReadRequest | Call | Resume
    | OpenOrigin | Replicate | Exchange | PublishTo | ReplicateTo
)  # fmt: skip

_REQUESTS: dict[int, tuple[type[Any], Layout]] = {
    1: (Open, Layout(U32, FLAG, NAME, NAME, NAME, TEXT)),
    2: (CloseProducer, Layout(U32)),
    3: (Publish, Layout(U32, ENTRIES)),
    4: (Subscribe, Layout(U32, I32, FLAG, START, NAME, NAME, NAME, TEXT)),
    5: (Detach, Layout(U32)),
    6: (Flow, Layout(U32, COUNT)),
    7: (Fetch, Layout(U32)),
    8: (Acknowledge, Layout(U32, U32, OFFSETS)),
    9: (AcknowledgeRange, Layout(U32, U32, OFFSET, OFFSET)),
    10: (AcknowledgeCumulative, Layout(U32, U32, OFFSET)),
    11: (Nack, Layout(U32, OFFSET_OR_NONE, OFFSETS)),
    12: (Redeliver, Layout(U32)),
    13: (Seek, Layout(U32, START)),
    14: (Flush, Layout(U32)),
    15: (ReadRequest, Layout(OFFSET, OFFSET, COUNT, NAME)),
    16: (Call, Layout(NAME, NAME, TEXT)),
    17: (AcknowledgeAndFetch, Layout(U32, U32, OFFSET, OFFSET)),
    18: (Resume, Layout(U32, OFFSET, OFFSET, RANGES)),
    19: (NackWithReason, Layout(U32, OFFSET_OR_NONE, TEXT, OFFSETS)),
    20: (OpenOrigin, Layout(U32, OFFSET, FLAG, PARTITIONS, CLUSTER, NAME, NAME, TEXT)),
    21: (Replicate, Layout(U32, GAPS, ORIGIN_ENTRIES)),
    22: (
        Exchange,
        Layout(OFFSET, OFFSET, FLAG, OFFSET_OR_NONE, OFFSET_OR_NONE, OFFSET, U32, I64, CLUSTER, NAME, NAME, MESSAGES),
    ),
    23: (PublishTo, Layout(U32, LISTS, ENTRIES)),
    24: (ReplicateTo, Layout(U32, GAPS, LISTS, ORIGIN_ENTRIES)),
}
_KINDS = {request: kind for kind, (request, _) in _REQUESTS.items()}
_LABELS = {kind: f"request {request.__name__}" for kind, (request, _) in _REQUESTS.items()}
_make: Callable[[type[Any], list[Any]], Any] = tuple.__new__
"""Makes a named tuple from a value for each of its fields."""


CHECKED = 0x80
"""Flag of a kind: the request and its reply have checksums."""


def encode_request(request: Request, *, is_checked: bool = False) -> list[ReadableBuffer]:
    """Return the buffers of a body. is_checked: the peer has version 2.

    Raises InvalidArgumentError if a text is too long.
    """
    kind = _KINDS[type(request)]
    head = bytes((kind | CHECKED if is_checked else kind,)) + _REQUESTS[kind][1].encode(request)
    buffers: list[ReadableBuffer] = [head]
    if isinstance(request, (Publish, PublishTo)):
        buffers += request.entries
    elif isinstance(request, (Replicate, ReplicateTo)):
        buffers += [entry.value for entry in request.entries]
    if is_checked:
        buffers.append(checksum(*buffers))
    return buffers


def asks_for_checksum(body: memoryview) -> bool:
    """Return whether a request has a checksum."""
    return len(body) > 0 and body[0] & CHECKED > 0


def decode_request(body: memoryview) -> Request:
    """Decode a request; the result does not refer to the receive buffer.

    Raises InvalidMessageError and DamagedMessageError when the request is malformed; UnsupportedRequestError for an
    unknown kind that appears intact.
    """
    if not len(body):
        raise InvalidMessageError("request: expected a kind, found nothing")
    kind = body[0] & ~CHECKED
    if kind not in _REQUESTS:
        _check_unknown(kind, body)
        expected = f"a kind from 1 to {max(_REQUESTS)}"
        raise UnsupportedRequestError(f"request: expected {expected}, found {kind}: upgrade the server")
    request_type, layout = _REQUESTS[kind]
    reader = WireReader(_LABELS[kind], body, 1, is_checked=body[0] & CHECKED > 0)
    request: Request = _make(request_type, layout.decode(reader))
    reader.end()
    if isinstance(request, (PublishTo, ReplicateTo)) and len(request.replicate_to) != len(request.entries):
        raise reader.refusal(f"lists of clusters for {len(request.entries)} entries", str(len(request.replicate_to)))
    return request


def _check_unknown(kind: int, body: memoryview) -> None:
    """Check the checksum at the end of an unknown request, if it has one. Raises DamagedMessageError if it is wrong."""
    if asks_for_checksum(body):
        reader = WireReader(f"request of kind {kind}", body, is_checked=True)
        reader.take(max(len(body) - CHECKSUM_BYTES, 0))
        reader.end()


# ---- replies ---------------------------------------------------------------------------------------------------


class Done(NamedTuple):
    """The request was carried out."""


class Opened(NamedTuple):
    """The producer session is open.

    Attributes:
        last_sequence: highest number that the session's producer has stored or in flight; -1: none.
        entry_bytes_max: most bytes of an entry with its record.
        config: settings of the topic, JSON.
    """

    last_sequence: int
    entry_bytes_max: int
    config: str


class Moved(NamedTuple):
    """The subscription continues at `offset`, with this generation of the consumer."""

    offset: int
    generation: int


class MovedTo(NamedTuple):
    """Moved, for a consumer that was resumed."""

    offset: int
    generation: int
    era: int


class Resumed(NamedTuple):
    """The consumer was resumed. era: the era of its generation. counts: whether its acknowledgements count."""

    generation: int
    era: int
    counts: bool


class OriginOpened(NamedTuple):
    """The session of an origin is open.

    The last stored entry of the origin is given by `first`, `end`, `value_crc` and `publish_time_us`; `first` is -1 if
    there is none.

    Attributes:
        cluster: id of the cluster that answers.
        stored: all messages of the origin below it are stored, or lie in a gap.
        config: settings of the topic, and `clock_us`, the time of the server's wall clock: JSON.
    """

    stored: int
    first: int
    end: int
    value_crc: int
    publish_time_us: int
    cluster: bytes
    config: str


class Replicated(NamedTuple):
    """The entries are durable. stored: all messages of the origin below it are stored, or lie in a gap."""

    stored: int


class Exchanged(NamedTuple):
    """The messages of the asked cluster about the replicated subscriptions of the topic; fields as in Exchange."""

    is_proved: bool
    stored: int
    first: int
    end: int
    value_crc: int
    publish_time_us: int
    cluster: bytes
    token: str
    messages: Sequence[bytes]


class CallResult(NamedTuple):
    """The result of a call, as JSON."""

    result: str


_REPLIES: dict[type[Any], Layout] = {
    Done: Layout(),
    Opened: Layout(OFFSET_OR_NONE, COUNT, TEXT),
    Moved: Layout(OFFSET, U32),
    MovedTo: Layout(OFFSET, U32, OFFSET),
    Resumed: Layout(U32, OFFSET, FLAG),
    CallResult: Layout(TEXT),
    OriginOpened: Layout(OFFSET, OFFSET_OR_NONE, OFFSET, U32, I64, CLUSTER, TEXT),
    Replicated: Layout(OFFSET),
    Exchanged: Layout(FLAG, OFFSET_OR_NONE, OFFSET_OR_NONE, OFFSET, U32, I64, CLUSTER, NAME, MESSAGES),
}

PUBLISHED = Layout(OFFSET_OR_NONE, U32, U32)
"""Layout of the reply to a PUBLISH, up to its bits."""

Reply = Done | Opened | Moved | MovedTo | Resumed | CallResult | OriginOpened | Replicated | Exchanged


def encode_reply(reply: Reply) -> bytes:
    return bytes((OK,)) + _REPLIES[type(reply)].encode(reply)


def decode_reply(kind: type[Reply], reader: WireReader) -> Any:
    """Decode the bytes behind the status. Raises InvalidMessageError when they are malformed."""
    reply = _make(kind, _REPLIES[kind].decode(reader))
    reader.end()
    return reply


_TEXT_MAX = 1024
_CLASSES: tuple[type[ReplogError], ...] = (
    errors.PeerError,
    errors.NoSuchTopicError,
    errors.TopicExistsError,
    errors.TopicFencedError,
    errors.TopicOwnedError,
    errors.TopicFullError,
    errors.BacklogFullError,
    errors.NoSuchSubscriptionError,
    errors.SubscriptionBusyError,
    errors.SequenceError,
    errors.InvalidEntryError,
    errors.InvalidArgumentError,
    errors.WrongTypeError,
    errors.ConfigError,
    errors.ClosedError,
    errors.OutOfRangeError,
    errors.TrimmedError,
    errors.OutcomeUnknownError,
    errors.WindowFullError,
    errors.RecordTooLargeError,
    errors.MetadataUnavailableError,
    errors.InvalidMetadataError,
    errors.MissingExtraError,
    errors.UnreadableError,
    errors.NotEnoughBookiesError,
    errors.EntryRefusedError,
    errors.SubscriptionError,
    errors.TopicError,
    errors.MetadataVersionError,
    errors.UnsupportedRequestError,
    errors.MetadataLayoutError,
    errors.OriginSessionError,
    errors.OriginGapError,
    errors.OriginHistoryError,
    errors.UnsentMessagesError,
)  # numbers are indexes: add at the end only
_NUMBERS = {kind: number for number, kind in enumerate(_CLASSES)}


def encode_fault(error: BaseException, address: str = "") -> bytes:
    """Return the reply to a request that failed. address: of the server to be asked instead."""
    number = _number_of(type(error))
    if isinstance(error, TopicError):
        about, text = error.topic, error.message
    elif isinstance(error, LedgerError):
        about, text = str(error.ledger), error.message
    else:
        about, text = "", str(error)
    if number == 0 and not isinstance(error, PeerError):
        text = f"{type(error).__name__}: {error}"
    text = text.encode("utf-8", "replace")[:_TEXT_MAX].decode("utf-8", "ignore")
    return bytes((ERROR,)) + U32.encode(number) + NAME.encode(about) + NAME.encode(address) + TEXT.encode(text)


def decode_fault(reader: WireReader) -> tuple[ReplogError, str]:
    """Return the error, and the address of the server to be asked instead ("": none).

    Raises InvalidMessageError when the reply is malformed.
    """
    number, about, address, text = (field.decode(reader) for field in (U32, NAME, NAME, TEXT))
    reader.end()
    kind = _CLASSES[number] if number < len(_CLASSES) else PeerError
    if issubclass(kind, TopicError):
        return kind(about, text), address
    if issubclass(kind, LedgerError):
        return kind(int(about) if about.isdecimal() else -1, text), address
    return kind(text), address


def _number_of(kind: type[BaseException]) -> int:
    """Return the number of the nearest base class that has one; 0: no class has."""
    return next((_NUMBERS[base] for base in kind.__mro__ if base in _NUMBERS), 0)
