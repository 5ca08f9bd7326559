from _typeshed import ReadableBuffer

def encode_attributes(
    event_time_us: int | None,
    properties: dict[str, str | bytes] | None,
    producer: bytes | None = None,
    sequence: int | None = None,
) -> bytes: ...
def decode_attributes(data: ReadableBuffer) -> list[tuple[int, bytes]]: ...
