"""What brokers send each other: what is encoded is decoded, and bytes that are no message are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.errors import InvalidMessageError, UnsupportedRequestError
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.messages import DivergingEpoch, Fetch, FetchedRecords, FetchRefused, FetchResponse
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.requests import FetchPartitionData, FetchResponses, ReplicaFetch, ReplicaFetchRequest
from pyreplog.partition.store.partition_log import LogSlice
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.wire import decode_fetch, decode_responses, encode_error, encode_fetch, encode_responses
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History, TermStart

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
NUMBERS = st.integers(0, (1 << 63) - 1)
MARKS = st.builds(LogPosition, NUMBERS, NUMBERS)
EPOCHS = st.builds(LeaderEpoch, NUMBERS, NAMES)
PARTITIONS = st.builds(TopicPartition, NAMES, st.integers(0, (1 << 31) - 1))
U32 = st.integers(0, (1 << 32) - 1)


@st.composite
def requests(draw: st.DrawFn) -> ReplicaFetchRequest:
    member = Member(draw(NAMES), draw(NUMBERS))
    fetches = st.builds(
        ReplicaFetch,
        st.builds(Fetch, NUMBERS, st.just(member), EPOCHS, MARKS, EPOCHS, MARKS, MARKS, NUMBERS, NUMBERS),
        U32,
    )
    by_partition = draw(st.dictionaries(PARTITIONS, fetches, max_size=5))
    return ReplicaFetchRequest(member, draw(NUMBERS), draw(st.booleans()), draw(U32), draw(U32), by_partition)


EMPTY = ReplicaFetchRequest(Member("b", 1), 1, True, 500, 1000, {})


@st.composite
def answers(draw: st.DrawFn) -> FetchResponse:
    number, kind = draw(NUMBERS), draw(st.sampled_from(["records", "diverging", "refused"]))
    if kind == "refused":
        return FetchRefused(number, draw(st.sampled_from(ErrorCode)))
    if kind == "diverging":
        ends = sorted(draw(st.sets(st.integers(0, 1 << 40), max_size=4)))
        starts = [TermStart(LeaderEpoch(at + 1, "a"), LogPosition(end, end // 2)) for at, end in enumerate(ends)]
        return DivergingEpoch(
            number, draw(EPOCHS), History(tuple(starts)), draw(MARKS), draw(MARKS), draw(st.binary(max_size=50))
        )  # fmt: skip
    position, end = draw(MARKS), draw(MARKS)
    frames = draw(st.lists(st.tuples(NUMBERS, st.binary(max_size=50)), max_size=4))
    epochs = tuple(draw(st.lists(st.builds(TermStart, EPOCHS, MARKS), max_size=3)))
    records = LogSlice(position, end, frames)
    return FetchedRecords(number, draw(EPOCHS), position, end, epochs, draw(MARKS), draw(MARKS), records, draw(NUMBERS))


def plain(responses: FetchResponses) -> dict[TopicPartition, Any]:
    """With bytes in place of views."""

    def one(response: FetchResponse | None) -> Any:
        if isinstance(response, FetchedRecords):
            assert isinstance(response.records, LogSlice)
            frames = [(at, bytes(body)) for at, body in response.records.frames]
            return response._replace(records=response.records._replace(frames=frames))
        return response

    return {name: one(data.response) for name, data in responses.items()}


RESPONSES = st.dictionaries(
    PARTITIONS, st.builds(lambda response: FetchPartitionData(ErrorCode.NONE, response=response), answers()), max_size=4
)


@given(requests())
def test_fetch_requests_are_decoded_as_encoded(request: ReplicaFetchRequest) -> None:
    assert decode_fetch(encode_fetch(request)) == request


@given(RESPONSES)
def test_fetch_responses_are_decoded_as_encoded(responses: FetchResponses) -> None:
    assert plain(decode_responses(b"".join(encode_responses(responses)))) == plain(responses)


@given(requests(), st.data())
def test_cut_and_grown_fetches_are_refused(request: ReplicaFetchRequest, data: st.DataObject) -> None:
    body = encode_fetch(request)
    size = data.draw(st.integers(0, len(body) - 1))
    for bad in (body[:size], body + b"\0"):
        with pytest.raises(InvalidMessageError):
            decode_fetch(bad)


@given(RESPONSES, st.data())
def test_cut_and_grown_responses_are_refused(responses: FetchResponses, data: st.DataObject) -> None:
    body = b"".join(encode_responses(responses))
    size = data.draw(st.integers(0, len(body) - 1))
    for bad in (body[:size], body + b"\0"):
        with pytest.raises(InvalidMessageError):
            decode_responses(bad)


@given(st.binary(max_size=200))
def test_arbitrary_broker_messages_are_decoded_or_refused(body: bytes) -> None:
    """They are a message, or are refused; memory is bounded by what is there."""
    for decode in (decode_fetch, decode_responses):
        try:
            decode(body)
        except (InvalidMessageError, UnsupportedRequestError):
            continue


def test_counts_are_bounded_before_they_are_believed() -> None:
    head = encode_fetch(EMPTY)[:-4]
    with pytest.raises(InvalidMessageError, match="expected at most 65536"):
        decode_fetch(head + b"\xff\xff\xff\xff")
    with pytest.raises(InvalidMessageError, match="expected at most 65536"):
        decode_responses(b"\0" + b"\xff\xff\xff\xff")


def test_requests_of_later_versions_are_refused_in_words() -> None:
    with pytest.raises(UnsupportedRequestError, match="request 99"):
        decode_fetch(b"\x63later")
    with pytest.raises(UnsupportedRequestError, match="refused a fetch: request 99"):
        decode_responses(encode_error("request 99: this broker knows 10"))
