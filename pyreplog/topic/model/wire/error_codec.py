"""Errors on their way to a client: a number of the class, and text."""

from __future__ import annotations

from pyreplog import errors
from pyreplog.errors import LedgerError, PeerError, ReplogError, TopicError
from pyreplog.topic.model.wire.fields import NAME, TEXT, U32, WireReader
from pyreplog.topic.model.wire.protocol import ERROR

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
)  # numbers are places in it: add at the end only
_NUMBERS = {kind: number for number, kind in enumerate(_CLASSES)}


def encode_fault(error: BaseException, address: str = "") -> bytes:
    """The reply to a request that failed. address: of who can be asked instead."""
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
    """The error, and the address of who can be asked instead, "" nobody. InvalidMessageError."""
    number, about, address, text = (field.decode(reader) for field in (U32, NAME, NAME, TEXT))
    reader.end()
    kind = _CLASSES[number] if number < len(_CLASSES) else PeerError
    if issubclass(kind, TopicError):
        return kind(about, text), address
    if issubclass(kind, LedgerError):
        return kind(int(about) if about.isdecimal() else -1, text), address
    return kind(text), address


def _number_of(kind: type[BaseException]) -> int:
    """Of the nearest class that has one; 0: none has."""
    return next((_NUMBERS[base] for base in kind.__mro__ if base in _NUMBERS), 0)
