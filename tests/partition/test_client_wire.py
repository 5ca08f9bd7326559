"""Requests of clients: what is encoded is decoded, and bytes that are no message are refused."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.errors import InvalidMessageError, UnsupportedRequestError
from pyreplog.partition.client_wire import (
    ClientRequest,
    ConsumeRequest,
    ConsumeResponse,
    DescribePartitionsRequest,
    ListOffsetsRequest,
    ProduceRequest,
    decode_cleaned_segments,
    decode_codes,
    decode_consume_responses,
    decode_descriptions,
    decode_offsets,
    decode_produce_responses,
    decode_producer_snapshot_piece,
    decode_request,
    decode_segment_piece,
    encode_cleaned_segments,
    encode_codes,
    encode_consume_responses,
    encode_descriptions,
    encode_offsets,
    encode_produce_responses,
    encode_producer_snapshot_piece,
    encode_request,
    encode_segment_piece,
)
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.isr import FollowerProgress
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.requests import (
    AbortedTransaction,
    CleanedSegments,
    CleanedSegmentsRequest,
    ConsumerFetch,
    FetchIsolation,
    FetchParams,
    PartitionDescription,
    PartitionOffsets,
    PartitionProduceResponse,
    PartitionQuery,
    ProducerSnapshotPiece,
    ProducerSnapshotRequest,
    SegmentPiece,
    SegmentReadRequest,
    VerifyTransactionRequest,
    WriteMarkersRequest,
)
from pyreplog.partition.store.segment_copy import SegmentDigest
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.wire import encode_error

GOLDEN = Path(__file__).parents[1] / "golden" / "client-wire-v2.json"

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
U63 = st.integers(0, (1 << 63) - 1)
U32 = st.integers(0, (1 << 32) - 1)
PARTITIONS = st.builds(TopicPartition, NAMES, st.integers(0, (1 << 31) - 1))
CODES = st.sampled_from(ErrorCode)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
ISOLATIONS = st.sampled_from([FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED])
EPOCHS = st.builds(LeaderEpoch, U63, NAMES)
FETCHES = st.builds(ConsumerFetch, U63, U32, st.none() | U63)
REQUESTS: st.SearchStrategy[ClientRequest] = st.one_of(
    st.builds(
        WriteMarkersRequest,
        st.builds(TransactionMarker, I64, st.integers(-1, 32767), st.integers(-1, (1 << 31) - 1), st.booleans()),
        st.integers(1, 2), st.dictionaries(PARTITIONS, U63, max_size=4),
    ),
    st.builds(
        VerifyTransactionRequest, TEXTS, I64, st.integers(-1, 32767), st.lists(PARTITIONS, max_size=4).map(tuple)
    ),
    st.builds(
        ProduceRequest, st.sampled_from([-1, 0, 1]), U32, st.booleans(),
        st.dictionaries(PARTITIONS, st.binary(max_size=50), max_size=4),
    ),
    st.builds(
        ConsumeRequest,
        st.builds(FetchParams, ISOLATIONS, U32, U32, U32, st.just(False), st.booleans()),
        st.dictionaries(PARTITIONS, FETCHES, max_size=4),
    ),
    st.builds(ListOffsetsRequest, st.dictionaries(PARTITIONS, st.none() | I64, max_size=4)),
    st.builds(CleanedSegmentsRequest, PARTITIONS, st.builds(Member, NAMES, U63), EPOCHS, U63),
    st.builds(SegmentReadRequest, PARTITIONS, EPOCHS, U63, U63, U32),
    st.builds(ProducerSnapshotRequest, PARTITIONS, U63, U63, U63, U32),
    st.builds(
        DescribePartitionsRequest,
        st.dictionaries(
            PARTITIONS, st.builds(PartitionQuery, st.none() | I64, st.lists(U63, max_size=4).map(tuple)), max_size=4
        ),
    ),
)  # fmt: skip
ABORTED = st.lists(st.builds(AbortedTransaction, I64, I64), max_size=3)
FOLLOWERS = st.lists(st.builds(FollowerProgress, st.builds(Member, NAMES, U63), I64, I64), max_size=4).map(tuple)
DESCRIPTIONS = st.builds(
    PartitionDescription, st.builds(PartitionOffsets, CODES, I64, I64, I64, I64, I64), FOLLOWERS,
    st.lists(I64, max_size=4).map(tuple),
)  # fmt: skip
CONSUMED = st.builds(
    ConsumeResponse, CODES, I64, I64, I64, I64, st.binary(max_size=50).map(lambda data: [data] if data else ()),
    ABORTED, TEXTS,
)  # fmt: skip


def joined(pieces: list[Any]) -> bytes:
    return b"".join(bytes(piece) for piece in pieces)


@given(REQUESTS)
def test_client_requests_are_decoded_as_encoded(request: ClientRequest) -> None:
    assert decode_request(joined(encode_request(request))) == request


@given(st.dictionaries(PARTITIONS, CODES, max_size=4))
def test_error_codes_are_decoded_as_encoded(codes: dict[TopicPartition, ErrorCode]) -> None:
    assert decode_codes(encode_codes(codes)) == codes


RESPONSES = st.builds(PartitionProduceResponse, CODES, I64, I64, I64, I64, TEXTS, st.just(()))


@given(st.dictionaries(PARTITIONS, RESPONSES, max_size=4))
def test_produce_responses_come_back(responses: dict[TopicPartition, PartitionProduceResponse]) -> None:
    assert decode_produce_responses(encode_produce_responses(responses)) == responses


@given(st.dictionaries(PARTITIONS, CONSUMED, max_size=4))
def test_consume_responses_come_back(responses: dict[TopicPartition, ConsumeResponse]) -> None:
    assert decode_consume_responses(joined(encode_consume_responses(responses))) == responses


@given(st.dictionaries(PARTITIONS, st.builds(PartitionOffsets, CODES, I64, I64, I64, I64, I64), max_size=4))
def test_offsets_are_decoded_as_encoded(offsets: dict[TopicPartition, PartitionOffsets]) -> None:
    assert decode_offsets(encode_offsets(offsets)) == offsets


@given(CODES, U63, st.lists(st.builds(SegmentDigest, U63, U63, U63, U63, U32), max_size=4), st.binary(max_size=50))
def test_cleaned_segments_are_decoded_as_encoded(
    code: ErrorCode, cleaned: int, segments: list[SegmentDigest], data: bytes
) -> None:
    answer = CleanedSegments(code, cleaned, segments)
    assert decode_cleaned_segments(encode_cleaned_segments(answer)) == answer
    piece = SegmentPiece(code, data)
    assert decode_segment_piece(joined(encode_segment_piece(piece))) == piece


@given(st.builds(ProducerSnapshotPiece, CODES, U63, U63, st.binary(max_size=50)))
def test_pieces_of_producer_snapshots_come_back(piece: ProducerSnapshotPiece) -> None:
    assert decode_producer_snapshot_piece(joined(encode_producer_snapshot_piece(piece))) == piece


@given(st.binary(max_size=80))
def test_any_bytes_are_segments_or_refused(body: bytes) -> None:
    for decode in (decode_cleaned_segments, decode_segment_piece, decode_producer_snapshot_piece):
        with suppress(InvalidMessageError, UnsupportedRequestError):
            decode(b"\0\0\0\0\1" + body)


@given(st.dictionaries(PARTITIONS, DESCRIPTIONS, max_size=4))
def test_descriptions_are_decoded_as_encoded(descriptions: dict[TopicPartition, PartitionDescription]) -> None:
    assert decode_descriptions(encode_descriptions(descriptions)) == descriptions


@given(REQUESTS, st.data())
def test_requests_that_are_cut_or_longer_are_refused(request: ClientRequest, data: st.DataObject) -> None:
    whole = joined(encode_request(request))
    for broken in (whole[: data.draw(st.integers(0, len(whole) - 1))], whole + b"\0"):
        with pytest.raises(InvalidMessageError):
            decode_request(broken)


@given(st.integers(2, 9) | st.just(11), st.binary(max_size=80))
def test_any_bytes_are_a_request_or_refused(kind: int, body: bytes) -> None:
    try:
        decode_request(bytes([kind]) + body)
    except InvalidMessageError:
        return


def test_a_partition_has_one_batch_in_a_request() -> None:
    one = joined(encode_request(ProduceRequest(-1, 1, False, {TopicPartition("a", 0): b"xy"})))
    entry = one[11:-2]
    with pytest.raises(InvalidMessageError, match="one batch a partition"):
        decode_request(one[:7] + (2).to_bytes(4, "big") + entry + entry + b"xyxy")


def test_a_marker_goes_once_to_a_partition_and_has_a_version() -> None:
    marker = TransactionMarker(7, 1, 2, True)
    whole = joined(encode_request(WriteMarkersRequest(marker, 2, {TopicPartition("a", 0): 5})))
    entry, head = whole[21:], whole[:17]
    with pytest.raises(InvalidMessageError, match="each partition once"):
        decode_request(head + (2).to_bytes(4, "big") + entry + entry)
    with pytest.raises(InvalidMessageError, match="a transaction version of 1 or 2"):
        decode_request(whole[:16] + b"\3" + whole[17:])


def test_requests_of_later_versions_are_refused() -> None:
    with pytest.raises(UnsupportedRequestError, match="request 12"):
        decode_request(b"\x0c")
    for decode in (
        decode_codes, decode_produce_responses, decode_consume_responses, decode_offsets, decode_cleaned_segments,
        decode_segment_piece, decode_producer_snapshot_piece, decode_descriptions,
    ):  # fmt: skip
        with pytest.raises(UnsupportedRequestError, match="no such"):
            decode(encode_error("no such request"))


def samples() -> dict[str, bytes]:
    """One message of each kind."""
    name, other = TopicPartition("flights", 3), TopicPartition("gates", 0)
    params = FetchParams(FetchIsolation.TXN_COMMITTED, 500, 1, 1 << 20)
    return {
        "write markers": joined(
            encode_request(WriteMarkersRequest(TransactionMarker(7, 1, 2, True), 1, {name: 4, other: 9}))
        ),
        "verify transaction": joined(encode_request(VerifyTransactionRequest("transfers", 7, 1, (name, other)))),
        "produce": joined(encode_request(ProduceRequest(-1, 30_000, True, {name: b"batch", other: b"b2"}))),
        "consume": joined(encode_request(ConsumeRequest(params, {name: ConsumerFetch(5, 1000, 2)}))),
        "list offsets": joined(encode_request(ListOffsetsRequest({name: None, other: -1}))),
        "describe partitions": joined(
            encode_request(DescribePartitionsRequest({name: PartitionQuery(-1, (0, 5)), other: PartitionQuery()}))
        ),
        "codes": encode_codes({name: ErrorCode.NONE, other: ErrorCode.NOT_LEADER_OR_FOLLOWER}),
        "produced": encode_produce_responses({name: PartitionProduceResponse(ErrorCode.NONE, 5, 8, 0, -1, "")}),
        "consumed": joined(
            encode_consume_responses(
                {name: ConsumeResponse(ErrorCode.NONE, 9, 8, 0, 8, [b"batch"], [AbortedTransaction(7, 6)], "")}
            )
        ),
        "cleaned segments": joined(
            encode_request(CleanedSegmentsRequest(name, Member("b", 3), LeaderEpoch(5, "a"), 70))
        ),
        "read segment": joined(encode_request(SegmentReadRequest(name, LeaderEpoch(5, "a"), 1 << 20, 4096, 1000))),
        "cleaned": encode_cleaned_segments(
            CleanedSegments(ErrorCode.NONE, 80, [SegmentDigest(1 << 20, 40, 75, 9000, 0xDEADBEEF)])
        ),
        "piece": joined(encode_segment_piece(SegmentPiece(ErrorCode.NONE, b"bytes"))),
        "producer snapshot": joined(encode_request(ProducerSnapshotRequest(name, 1 << 20, 3 << 20, 4096, 1000))),
        "producer snapshot piece": joined(
            encode_producer_snapshot_piece(ProducerSnapshotPiece(ErrorCode.NONE, 2 << 20, 70_000, b"bytes"))
        ),
        "offsets": encode_offsets({name: PartitionOffsets(ErrorCode.NONE, 0, 10, 9, 8, 5)}),
        "descriptions": encode_descriptions(
            {
                name: PartitionDescription(
                    PartitionOffsets(ErrorCode.NONE, 0, 10, 9, 8, 5),
                    (FollowerProgress(Member("b", 3), 9, 0), FollowerProgress(Member("c", 1), -1, 70_000)),
                    (-1, 12),
                )
            }
        ),
    }


def test_the_bytes_are_those_of_the_golden_file() -> None:
    """A change of these bytes is a new version of the protocol."""
    assert {kind: body.hex() for kind, body in samples().items()} == json.loads(GOLDEN.read_text())
