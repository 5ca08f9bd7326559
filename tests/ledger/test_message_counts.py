"""Entries with several messages: the ledger counts messages, whichever client writes, copies or closes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyreplog._native.ledger_log.entries import encode_entries, merge_entries, parse_entries
from pyreplog._native.topic.message_encoder import encode_messages, encode_slices
from pyreplog._native.topic.messages import decode_messages
from pyreplog.bookie.protocol import Request, RequestKind
from pyreplog.errors import InvalidArgumentError, NotEnoughBookiesError, WrongTypeError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import State
from tests.ledger.conftest import SEGMENT_BYTES
from tests.ledger.lab import KEY, LEDGER, Lab

IDS: dict[str, Any] = {"ledger": 5, "lac": -1, "time": 7}


def counted(records: Any) -> list[tuple[int, int]]:
    return [(record.kind, record.ledger_messages) for record in records]


# ---- encoding --------------------------------------------------------------------------------------------------


def test_running_counts_grow_by_what_is_given() -> None:
    entries = encode_entries(
        [b"a", b"b", b"c"], first=4, ledger_messages=100, ledger_bytes=9, messages=[1, 20, 3], **IDS
    )
    batch = parse_entries(bytes(entries.view), ledger=5, first=4, last=6)
    assert counted(batch) == [(2, 101), (2, 121), (2, 124)]
    assert [record.ledger_bytes for record in batch] == [10, 11, 12]
    assert (entries.ledger_messages, entries.ledger_bytes, entries.totals(5)) == (124, 12, (11, 121))
    plain = encode_entries([b"a", b"b"], first=0, ledger_messages=100, **IDS)
    assert counted(parse_entries(bytes(plain.view), ledger=5, first=0, last=1)) == [(1, 101), (1, 102)]
    counts: Any
    for counts in (np.array([1, 20, 3]), (1, 20, 3), iter([1, 20, 3])):
        again = encode_entries([b"a", b"b", b"c"], first=4, ledger_messages=100, ledger_bytes=9, messages=counts, **IDS)
        assert again.view == entries.view


@pytest.mark.parametrize(("messages", "error", "why"), [
    ([1], InvalidArgumentError, "messages: expected 2, one per value, found 1"),
    ([1, 2, 3], InvalidArgumentError, "messages: expected 2, one per value, found 3"),
    ([1, 0], InvalidArgumentError, "messages: expected 1 or more.* found 0"),
    ([-1, 1], InvalidArgumentError, "messages: expected 1 or more.* found -1"),
    ([1, (1 << 63) - 11], InvalidArgumentError, "below 2\\*\\*63 in all"),
    ([1, 1 << 64], InvalidArgumentError, "below 2\\*\\*63 in all"),
    ([1, 1.0], WrongTypeError, "messages: expected integers, found float"),
    ([1, True], WrongTypeError, "messages: expected integers, found bool"),
    (2, WrongTypeError, "messages: expected integers, found int"),
])  # fmt: skip
def test_invalid_message_counts_are_refused(messages: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        encode_entries([b"a", b"b"], first=0, ledger_messages=11, messages=messages, **IDS)


def test_merged_entries_stay_what_they_are() -> None:
    entries = encode_entries([b"a", b"bb", b"c"], first=0, messages=[2, 30, 4], **IDS)
    at = [*entries.offsets]
    whole = bytes(entries.view)
    parts = [whole[at[1] : at[2]], whole[: at[1]] + whole[at[2] :]]
    merged = merge_entries(list(parts), last=9)
    assert counted(merged) == [(2, 2), (2, 32), (2, 36)]


# ---- the machines ----------------------------------------------------------------------------------------------


def write(lab: Lab, *counts: int) -> Any:
    """Return a writer that has sent one entry for each count."""
    writer = lab.writer()
    for entry, count in enumerate(counts):
        _, effects = writer.machine.append([b"entry %d" % entry], None, None, time_us=5, messages=[count])
        writer.do(effects)
    return writer


def test_a_writer_closes_its_ledger_with_its_messages() -> None:
    lab = Lab()
    writer = write(lab, 3, 40, 5).run()
    writer.do(writer.machine.close())
    writer.run()
    assert (lab.end, lab.metadata.messages) == (2, 48)


def test_a_writer_that_gives_up_counts_what_is_confirmed() -> None:
    lab = Lab()
    writer = lab.writer()
    _, effects = writer.machine.append([b"a", b"b", b"c"], None, None, time_us=5, messages=[3, 40, 5])
    writer.do(effects)
    writer.machine._push.tracker.ack_range(0, 0, 1)
    writer.machine._push.tracker.ack_range(1, 0, 1)
    writer.do(writer.machine.acked())
    writer.do(writer.machine.give_up(NotEnoughBookiesError("enough")))
    writer.store()
    assert (lab.end, lab.metadata.messages, lab.metadata.length) == (1, 43, 2)


@pytest.mark.parametrize("stored", ["abc", "b"])
@pytest.mark.parametrize("batch", [1, 2, 256])
def test_recovery_writes_back_what_it_finds(stored: str, batch: int) -> None:
    """The entries include those that only one bookie had."""
    lab = Lab()
    write(lab, 3, 40, 5).deliver(stored)
    recovery = lab.recovery(batch=batch).run()
    assert recovery.result.messages == 48
    assert (lab.end, lab.holders(2)) == (2, "abc")
    for bookie in "abc":
        body = lab.ask(bookie, Request(RequestKind.READ, LEDGER, 0, 2, KEY)).body
        assert counted(parse_entries(body, ledger=LEDGER, first=0, last=2)) == [(2, 3), (2, 43), (2, 48)]
    assert counted(lab.reading(0, 3).run().result) == [(2, 3), (2, 43), (2, 48)]


def test_recovery_behind_the_lac_asks_for_the_messages() -> None:
    lab = Lab()
    writer = write(lab, 3, 40, 5)
    writer.deliver()
    writer.do(writer.machine.send_lac())
    writer.deliver()
    assert lab.recovery().run().result.messages == 48


# ---- a cluster -------------------------------------------------------------------------------------------------

VALUES = [b"value %d" % i for i in range(1000)]


def read_back(cluster: LedgerCluster, ledger: int) -> list[bytes]:
    with cluster.open_ledger(ledger) as reader:
        return [
            value
            for records in reader.read()
            for value in decode_messages(records, offset=0, entries=0, size=0).values()
        ]


def test_a_ledger_counts_messages(cluster: LedgerCluster) -> None:
    entries, counts = encode_slices(VALUES, messages_max=64, bytes_max=1 << 20)
    with cluster.create_ledger() as ledger:
        assert ledger.append_batch(entries[:5], messages=counts[:5]) == range(5)
        assert ledger.append(b"a data entry") == 5
        assert ledger.submit_batch(entries[5:], messages=np.array(counts[5:])).result() == range(6, 17)
        with pytest.raises(InvalidArgumentError, match="messages: expected 1, one per value"):
            ledger.append_batch([b"x"], messages=[1, 1])
        assert ledger.last_add_pushed == 16
    metadata = cluster.ledger_metadata(ledger.id)
    assert (metadata.state, metadata.last_entry, metadata.messages) == (State.CLOSED, 16, 1001)
    assert read_back(cluster, ledger.id) == [*VALUES[:320], b"a data entry", *VALUES[320:]]


def test_another_opener_recovers_the_messages(folder: Path) -> None:
    """This holds as well if the logs of the bookies were opened again in between."""
    with LedgerCluster.embedded(folder, bookies=3, segment_bytes=SEGMENT_BYTES) as cluster:
        ledger = cluster.create_ledger(3, 3, 2)
        for at in range(0, 1000, 10):
            ledger.append_batch([encode_messages(VALUES[at : at + 3]), encode_messages(VALUES[at + 3 : at + 10])],
                                messages=[3, 7])  # fmt: skip
        ledger.abandon()  # leave it as a process that died does
    with LedgerCluster.embedded(folder, bookies=3, segment_bytes=SEGMENT_BYTES) as cluster:
        assert cluster.ledger_metadata(ledger.id).state is State.OPEN
        assert read_back(cluster, ledger.id) == VALUES
        metadata = cluster.ledger_metadata(ledger.id)
        assert (metadata.state, metadata.last_entry, metadata.messages) == (State.CLOSED, 199, 1000)
