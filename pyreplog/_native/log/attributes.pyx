"""Attributes of a record: tag u8, length u16, value; ascending by tag (FORMAT.md)."""

from libc.stdint cimport uint8_t

from pyreplog._native.layout cimport ATTRIBUTES_MAX, TAG_EVENT_TIME, TAG_PRODUCER, TAG_PROPERTY, TAG_SEQUENCE
from pyreplog.errors import RecordTooLargeError, WrongTypeError


def encode_attributes(event_time_us, properties, producer=None, sequence=None):
    """Return the attribute bytes of one record: tag u8, length u16, value; ascending by tag (FORMAT.md)."""
    cdef bytearray out = bytearray()
    if event_time_us is not None:
        put_attribute(out, TAG_EVENT_TIME, int(event_time_us).to_bytes(8, "little", signed=True))
    if properties is not None:
        put_properties(out, properties)
    if producer is not None:
        put_attribute(out, TAG_PRODUCER, producer)
    if sequence is not None:
        put_attribute(out, TAG_SEQUENCE, int(sequence).to_bytes(8, "little", signed=True))
    if len(out) > ATTRIBUTES_MAX:
        raise RecordTooLargeError(f"attributes: at most {ATTRIBUTES_MAX} bytes, found {len(out)}")
    return bytes(out)


cdef int put_properties(bytearray out, properties) except -1:
    if not isinstance(properties, dict):
        raise WrongTypeError(f"properties: expected a dict of str to str or bytes, found {type(properties).__name__}")
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, (str, bytes)):
            raise WrongTypeError(
                f"properties: expected str to str or bytes, found {type(name).__name__} to {type(value).__name__}")
        encoded = name.encode()
        if len(encoded) > ATTRIBUTES_MAX:
            raise RecordTooLargeError(f"property name: at most {ATTRIBUTES_MAX} bytes, found {len(encoded)}")
        put_attribute(out, TAG_PROPERTY,
                      len(encoded).to_bytes(2, "little") + encoded + (value.encode() if isinstance(value, str) else value))
    return 0


cdef int put_attribute(bytearray out, uint8_t tag, bytes value) except -1:
    if len(value) > ATTRIBUTES_MAX:
        raise RecordTooLargeError(f"attribute {tag}: at most {ATTRIBUTES_MAX} bytes, found {len(value)}")
    out.append(tag)
    out += len(value).to_bytes(2, "little")
    out += value
    return 0


def decode_attributes(data):
    """Return a list of (tag, value bytes), up to the first bytes that are no attribute."""
    view, out, at = memoryview(data), [], 0
    while at + 3 <= len(view):
        length = int.from_bytes(view[at + 1 : at + 3], "little")
        if at + 3 + length > len(view):
            break
        out.append((view[at], bytes(view[at + 3 : at + 3 + length])))
        at += 3 + length
    return out
