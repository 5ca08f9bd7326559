"""Errors of the Kafka listener."""

from __future__ import annotations

from pyreplog.errors.base import ReplogError


class InvalidRequestError(ReplogError):
    """A Kafka client sent bytes that are not a request of this API and version. The connection is closed.

    Attributes:
        message: the API, the version and the direction, as in `Fetch v12 request`.
        path: the field, as in `topics[3].partitions[0].records`.
        offset: the byte of the message at which the value begins.
        expected: what the protocol demands there.
        found: what arrived.
    """

    exit_code = 4

    def __init__(self, message: str, path: str, offset: int, expected: str, found: str) -> None:
        self.message, self.path, self.offset, self.expected, self.found = message, path, offset, expected, found
        super().__init__(f"{message}: {path} at byte {offset}: expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[InvalidRequestError], tuple[str, str, int, str, str]]:
        return type(self), (self.message, self.path, self.offset, self.expected, self.found)


class InvalidRecordBatchError(ReplogError):
    """A Kafka client sent records that are damaged, or that a producer may not send. Nothing of the batch was stored.

    Attributes:
        error_code: Kafka's number for the response: 2 corrupt, 10 too large, 32 timestamp, 76
            compression, 87 invalid record.
        record: number of the record in the batch, from 0; -1: the batch as a whole.
        offset: byte of the batch; within records: byte of the uncompressed records at which the record begins.
        expected: what the format demands there.
        found: what the batch has there.
    """

    exit_code = 4

    def __init__(self, error_code: int, record: int, offset: int, expected: str, found: str) -> None:
        self.error_code, self.record, self.offset, self.expected, self.found = (
            error_code, record, offset, expected, found,
        )  # fmt: skip
        place = "record batch" if record < 0 else f"record batch, record {record}"
        super().__init__(f"{place} at byte {offset}: expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[InvalidRecordBatchError], tuple[int, int, int, str, str]]:
        return type(self), (self.error_code, self.record, self.offset, self.expected, self.found)


class UnansweredProduceError(ReplogError):
    """A produce with acks=0, whose client wants no answer, was refused. Its connection is closed, which tells it.

    Attributes:
        partition: the first partition that refused records.
        error_code: Kafka's number for what would have been answered.
        reason: the error in words.
    """

    exit_code = 4

    def __init__(self, partition: str, error_code: int, reason: str) -> None:
        self.partition, self.error_code, self.reason = partition, error_code, reason
        super().__init__(f"{partition}: a produce with acks=0 was refused with code {error_code}: {reason}")

    def __reduce__(self) -> tuple[type[UnansweredProduceError], tuple[str, int, str]]:
        return type(self), (self.partition, self.error_code, self.reason)
