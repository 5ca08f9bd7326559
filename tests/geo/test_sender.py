"""The state machine `Sender`: what it sends after each answer of the target, and after each failure."""

from __future__ import annotations

from collections import deque
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import (
    BacklogFullError,
    DisconnectedError,
    InvalidEntryError,
    NotConnectedError,
    OriginGapError,
    OriginHistoryError,
    OriginSessionError,
    TrimmedError,
    UnsupportedRequestError,
)
from pyreplog.geo.protocol.effects import (
    EntryRefused,
    OpenOrigin,
    ReadEntries,
    RenewOrigin,
    SendEntries,
    SourceEntry,
    WakeAt,
)
from pyreplog.geo.protocol.sender import RETRY_MOST_S, RETRY_S, SenderState, SendingSettings
from pyreplog.origins.origin import GAPS_MAX, Gap, GapCause, LastEntry, Origin, OriginState
from tests.geo.sending import OTHER, OWN, START_US, TARGET, Sending, entry, foreign, last_of, position
from tests.switching import race

ALL = SendingSettings(forward_all=True)


def test_entries_are_sent_from_what_the_target_has() -> None:
    sending = Sending(entry(0, 3), entry(3), entry(4, 2))
    sending.open(3, last_of(entry(0, 3)))
    sending.check()
    sending.read()
    request = sending.sent()
    assert [sent.first for sent in request.entries] == [3, 4] and request.origin == OWN
    assert sending.sender.unsent_messages == 3
    sending.acknowledge(request)
    assert sending.sender.stored == sending.progress().mark == 6 and sending.sender.unsent_messages == 0
    assert sending.progress().own.last == last_of(entry(4, 2))


def test_sender_resumes_at_the_position_of_the_target_after_a_lost_connection() -> None:
    """The outcome of the entries that were in flight is unknown: the sender asks the target before it sends any others."""
    sending = Sending(*map(entry, range(4)), settings=SendingSettings(window_bytes=1))
    sending.open()
    sending.read()
    first = sending.sent()
    sending.acknowledge(first)
    lost = sending.sender.inflight_bytes
    sending.grow(entry(4))
    sending.read()
    request = sending.sent()
    assert not lost and request.entries[0].first == 4 and sending.sender.sent(OWN) == 5
    sending.fail(request, DisconnectedError("lost"))
    assert sending.sender.state is SenderState.WAITING and sending.sender.unsent_messages == 1
    assert sending.sender.inflight_bytes == 0 and not sending.all(OpenOrigin)
    assert sending.sender.sent(OWN) == 5  # this late answer is ignored
    sending.wake()
    newer = sending.open(5, last_of(entry(4)))
    assert sending.sender.sent(OWN) == 0
    sending.check()
    assert newer.session > 3 << 24 and not sending.all(SendEntries)
    assert sending.sender.stored == 5 and sending.sender.unsent_messages == 0


def test_reading_restarts_at_the_position_of_the_target() -> None:
    """The entries of a read that was in flight before the connection was lost are ignored."""
    sending = Sending(*map(entry, range(2)))
    sending.open()
    sending.read()
    request = sending.sent()
    sending.grow(entry(2))
    late = sending.take(ReadEntries)
    sending.fail(request, DisconnectedError("lost"))
    sending.wake()
    sending.open(1, last_of(entry(0)))
    sending.check()
    sending.do(sending.sender.entries_read, late.attempt, [entry(2)])
    sending.read()
    assert [sent.first for sent in sending.sent().entries] == [1, 2]


def test_sessions_ascend_also_over_owners() -> None:
    sending = Sending(entry(0))
    sessions = []
    for _ in range(3):
        effect = sending.take(OpenOrigin)
        sessions.append(effect.session)
        sending.do(sending.sender.lost, effect.attempt, OWN, NotConnectedError("away"))
        sending.wake()
    assert sessions == sorted({*sessions}) and sessions[0] >= 3 << 24 and sessions[-1] < 4 << 24


@pytest.mark.parametrize("lasted_s", [0.0, RETRY_MOST_S])
def test_delays_begin_anew_after_a_session_that_lasted(lasted_s: float) -> None:
    """A session that lasted resets the delay, even if nothing was sent in it. After short sessions the delay grows."""
    sending = Sending()
    delays = []
    for _ in range(4):
        effect = sending.open()
        assert sending.sender.state is SenderState.SENDING
        sending.now_us += int(lasted_s * 1e6)
        lost_us = sending.now_us
        sending.do(sending.sender.lost, effect.attempt, effect.origin, DisconnectedError("lost"))
        assert sending.sender.state is SenderState.WAITING
        sending.wake()
        delays.append((sending.now_us - lost_us) / 1e6)
    assert delays == [RETRY_S] * 4 if lasted_s else delays == [RETRY_S * 2**n for n in range(4)]


def test_answers_of_a_lost_session_change_nothing() -> None:
    sending = Sending(entry(0), entry(1))
    sending.open()
    sending.read()
    request = sending.sent()
    sending.fail(request, DisconnectedError("lost"))
    sending.wake()
    sending.acknowledge(request)
    sending.fail(request, OriginHistoryError("t", "late"))
    assert sending.sender.state is SenderState.OPENING and sending.sender.stored == 0 and not sending.alarms()


def test_a_gap_that_the_target_finds_makes_it_ask_again_at_once_and_then_after_a_while() -> None:
    sending = Sending(entry(0), entry(1))
    sending.open()
    sending.read()
    sending.fail(sending.sent(), OriginGapError("t", "expected 0, found 1"))
    sending.open()
    sending.read()
    request = sending.sent()
    assert request.entries[0].first == 0
    sending.fail(request, OriginGapError("t", "expected 0, found 1"))
    assert not sending.all(OpenOrigin) and sending.all(WakeAt)


@pytest.mark.parametrize(
    ("stored", "last", "words"),
    [
        (9, None, "sent from 4"),
        (2, last_of(entry(1, value=b"another")), "CRC"),
        (2, last_of(entry(1, time_us=5)), "5 us"),
        (3, last_of(entry(1, 2)), "1 to 3"),
    ],
    ids=["ahead", "bytes", "time", "messages"],
)
def test_another_history_stops_the_sender_until_an_operator_decides(stored: int, last: object, words: str) -> None:
    sending = Sending(*map(entry, range(4)))
    sending.open(stored, last)  # type: ignore[arg-type]
    if last is not None:
        sending.check()
    assert sending.sender.state is SenderState.DIVERGED and words in sending.alarms()[0]
    sending.grow(entry(4))
    sending.do(sending.sender.resume)
    sending.do(sending.sender.woke)
    assert not sending.all(OpenOrigin) and not sending.all(ReadEntries) and not sending.all(SendEntries)


def test_target_with_messages_that_were_never_sent_puts_the_sender_into_diverged() -> None:
    """The topic has grown beyond that offset since. The last messages that the target lacks may be gaps, so its end
    alone is no proof."""
    ends = [2]

    def sent(end: int) -> int:
        ends.append(max(ends[-1], end))
        return ends[-1]

    for stored, state in ((3, SenderState.DIVERGED), (2, SenderState.SENDING)):
        sending = Sending(*map(entry, range(4)), sent=sent)
        sending.open(stored)
        assert sending.sender.state is state
    sending.read()
    sending.fail(sending.sent(), DisconnectedError("lost"))
    sending.wake()
    sending.open(4)
    assert sending.sender.state is SenderState.SENDING and ends[-1] == 4


@pytest.mark.parametrize("last", [LastEntry(1, 3, 0, 0), LastEntry(2, 2, 0, 0)], ids=["beyond", "empty"])
def test_a_target_whose_last_entry_contradicts_its_position_is_asked_again(last: LastEntry) -> None:
    sending = Sending(*map(entry, range(4)))
    sending.open(2, last)
    assert sending.sender.state is SenderState.WAITING and "expected its last entry below 2" in str(
        sending.sender.error
    )
    sending.wake()
    sending.open(2, last_of(entry(1)))
    sending.check()
    assert sending.sender.state is SenderState.SENDING and sending.sender.error is None


def test_target_with_less_than_it_reported_puts_the_sender_into_diverged() -> None:
    sending = Sending(*map(entry, range(4)), own_position=position(3, last_of(entry(2))), mark=3)
    sending.open(2, last_of(entry(1)))
    assert sending.sender.state is SenderState.DIVERGED and "rolled back" in sending.sender.alarm
    sending.do(sending.sender.resync)
    sending.open(2, last_of(entry(1)))
    sending.read()
    assert [sent.first for sent in sending.sent().entries] == [2, 3]


def test_a_trimmed_entry_is_compared_with_what_was_noted() -> None:
    for noted, state in ((entry(1), SenderState.SENDING), (entry(1, value=b"other"), SenderState.DIVERGED)):
        sending = Sending(*map(entry, range(2, 4)), start=2, own_position=position(2, last_of(noted)), mark=2)
        sending.open(2, last_of(entry(1)))
        assert sending.sender.state is state


def test_a_history_error_of_the_gate_stops_the_sender() -> None:
    sending = Sending(entry(0))
    sending.open()
    sending.read()
    sending.fail(sending.sent(), OriginHistoryError("t", "across 7"))
    assert sending.sender.state is SenderState.DIVERGED and "across 7" in sending.sender.alarm


# ---- gaps ------------------------------------------------------------------------------------------------------


def test_messages_of_others_are_gaps_and_follow_with_the_next_entry() -> None:
    sending = Sending(entry(0), foreign(1, 70, 2), foreign(3, 72), entry(4))
    sending.open()
    sending.read()
    request = sending.sent()
    assert [sent.gaps for sent in request.entries] == [(), (Gap(1, 4, GapCause.FOREIGN),)]
    assert not sending.all(OpenOrigin)


def test_gaps_at_the_end_are_sent_after_a_delay() -> None:
    sending = Sending(entry(0), foreign(1, 0))
    sending.open()
    sending.read()
    sending.acknowledge(sending.sent())
    assert sending.sender.stored == 1 and not sending.all(SendEntries) and sending.sender.unsent_messages == 0
    sending.wake()
    request = sending.sent()
    assert request.entries == () and request.gaps == (Gap(1, 2, GapCause.FOREIGN),)
    sending.acknowledge(request)
    assert sending.progress().mark == 2


def test_messages_that_are_too_old_are_gaps() -> None:
    settings = SendingSettings(ttl_us=1000)
    sending = Sending(entry(0, time_us=START_US - 1001), entry(1), settings=settings)
    sending.open()
    sending.read()
    (sent,) = sending.sent().entries
    assert sent.first == 1 and sent.gaps == (Gap(0, 1, GapCause.EXPIRED),)
    assert sending.sender.skipped == {GapCause.EXPIRED: 1}


WEST = SendingSettings(target_name="west")


def test_messages_that_name_other_clusters_are_gaps() -> None:
    lists: list[tuple[str, ...] | None] = [("south",), (), None, ("west",), ("south", "west")]
    sending = Sending(*[entry(first, replicate_to=names) for first, names in enumerate(lists)], settings=WEST)
    sending.open()
    sending.read()
    sent = sending.sent().entries
    assert [(each.first, each.gaps) for each in sent] == [(2, (Gap(0, 2, GapCause.FILTERED),)), (3, ()), (4, ())]
    assert sending.sender.skipped == {GapCause.FILTERED: 2}


def test_messages_at_the_end_that_name_other_clusters_are_not_unsent() -> None:
    sending = Sending(entry(0), entry(1, 3, replicate_to=("south",)), settings=WEST)
    sending.open()
    sending.read()
    sending.acknowledge(sending.sent())
    assert sending.sender.unsent_messages == 0 and sending.sender.oldest_unsent_us is None
    sending.wake()
    request = sending.sent()
    assert request.entries == () and request.gaps == (Gap(1, 4, GapCause.FILTERED),)
    sending.acknowledge(request)
    assert sending.sender.stored == sending.progress().mark == 4


def test_a_forwarder_sends_a_message_only_to_the_clusters_that_it_names() -> None:
    kept = foreign(1, 1)._replace(replicate_to=frozenset(("west",)))
    withheld = foreign(0, 0)._replace(replicate_to=frozenset(("south",)))
    sending = Sending(withheld, kept, settings=WEST._replace(forward_all=True))
    sending.open()
    sending.read()
    sending.open()
    (sent,) = sending.sent().entries
    assert sent.first == 1 and sent.gaps == (Gap(0, 1, GapCause.FILTERED),)


@given(st.lists(st.none() | st.sets(st.sampled_from(("west", "south", "north"))), min_size=1, max_size=12))
def test_target_gets_messages_that_name_it_or_have_no_list_and_gaps_for_others(lists: list[set[str] | None]) -> None:
    sending = Sending(*[entry(first, replicate_to=names) for first, names in enumerate(lists)], settings=WEST)
    sending.open()
    sending.read()
    if sending.all(WakeAt):  # gaps at the end of the topic are sent later
        sending.wake()
    sent: list[int] = []
    withheld: list[int] = []
    for request in sending.all(SendEntries):
        sent += [each.first for each in request.entries]
        for gap in (*(gap for each in request.entries for gap in each.gaps), *request.gaps):
            assert gap.cause is GapCause.FILTERED
            withheld += range(gap.start, gap.end)
    assert sent == [first for first, names in enumerate(lists) if names is None or "west" in names]
    assert sorted(sent + withheld) == list(range(len(lists)))


def test_first_read_begins_at_the_start_of_the_policy() -> None:
    sending = Sending(*map(entry, range(4)), begin=3, withheld=GapCause.FILTERED)
    sending.open()
    assert sending.all(ReadEntries)[0].offset == 3
    sending.read()
    (sent,) = sending.sent().entries
    assert sent.first == 3 and sent.gaps == (Gap(0, 3, GapCause.FILTERED),)


def test_trimmed_messages_become_gaps_with_cause_lost() -> None:
    sending = Sending(*map(entry, range(4)))
    sending.open()
    effect = sending.take(ReadEntries)
    del sending.entries[:2]
    sending.do(sending.sender.read_failed, effect.attempt, TrimmedError("gone"), 2)
    sending.read()
    assert sending.sent().entries[0].gaps == (Gap(0, 2, GapCause.LOST),)
    assert sending.sender.skipped == {GapCause.LOST: 2}


def test_skipped_messages_are_counted_once() -> None:
    """The connection is lost before the target has stored their gaps: the next session reads them again."""
    hour_us = 3600 * 10**6
    settings, old_us = SendingSettings(ttl_us=hour_us), START_US - hour_us - 1
    sending = Sending(*map(entry, range(2)), entry(2, 3, time_us=old_us), entry(5), settings=settings)
    for is_stored in (False, True):
        sending.open()
        if not is_stored:
            effect = sending.take(ReadEntries)
            del sending.entries[:2]
            sending.do(sending.sender.read_failed, effect.attempt, TrimmedError("gone"), 2)
        sending.read()
        request = sending.sent()
        assert request.entries[0].gaps == (Gap(0, 2, GapCause.LOST), Gap(2, 5, GapCause.EXPIRED))
        if is_stored:
            sending.acknowledge(request)
        else:
            sending.fail(request, DisconnectedError("lost"))
            sending.wake()
    assert sending.sender.skipped == {GapCause.LOST: 2, GapCause.EXPIRED: 3}
    sending.grow(entry(6, time_us=old_us))
    sending.read()
    assert sending.sender.skipped == {GapCause.LOST: 2, GapCause.EXPIRED: 4}


def test_entries_that_are_not_those_that_were_asked_for_are_not_sent() -> None:
    """The messages before them are not counted as lost, as they can be read again."""
    sending = Sending(*map(entry, range(4)))
    sending.open()
    effect = sending.take(ReadEntries)
    sending.do(sending.sender.entries_read, effect.attempt, [entry(0), entry(2)])
    assert not sending.all(SendEntries) and "offset 1" in str(sending.sender.error)
    sending.wake()
    sending.open()
    sending.read()
    assert [(sent.first, sent.gaps) for sent in sending.sent().entries] == [(at, ()) for at in range(4)]


def test_an_entry_has_a_bounded_number_of_gaps() -> None:
    """Further gaps are sent in a request of their own, before the entry."""
    old = START_US - 10_000
    entries = []
    for offset in range(0, 400, 2):
        entries += [foreign(offset, offset), entry(offset + 1, time_us=old)]
    sending = Sending(*entries, entry(400), settings=SendingSettings(ttl_us=1000))
    sending.open()
    sending.read()
    requests = sending.all(SendEntries)
    gaps = [gap for request in requests for sent in request.entries for gap in sent.gaps]
    gaps = [gap for request in requests for gap in request.gaps] + gaps
    assert all(len(request.gaps) <= GAPS_MAX for request in requests) and len(requests) > 5
    assert [offset for gap in gaps for offset in range(gap.start, gap.end)] == [*range(400)]
    assert requests[-1].entries[0].first == 400


def test_an_entry_that_the_target_can_never_store_becomes_a_gap() -> None:
    """Only the refused entry becomes a gap: the others of its request are sent again, one at a time."""
    sending = Sending(*map(entry, range(4)))
    sending.open()
    sending.read()
    sending.fail(sending.sent(), InvalidEntryError("poison"))
    stored: list[int] = []
    for _ in range(20):
        if sending.all(OpenOrigin):
            sending.open(len(stored), last_of(entry(stored[-1])) if stored else None)
            if stored:
                sending.check()
            sending.read()
        requests = sending.all(SendEntries)
        if not requests:
            break
        request = sending.sent()
        if any(sent.first == 2 for sent in request.entries):
            assert len(request.entries) == 1
            sending.fail(request, InvalidEntryError("poison"))
        else:
            stored += [sent.first for sent in request.entries]
            sending.acknowledge(request)
    assert [(one.first, one.end) for one in sending.all(EntryRefused)] == [(2, 3)]
    assert stored == [0, 1, 3] and sending.sender.skipped == {GapCause.REFUSED: 1}
    assert sending.sender.stored == 4


# ---- windows ---------------------------------------------------------------------------------------------------


def test_the_window_bounds_what_is_on_its_way() -> None:
    large = [entry(offset, value=bytes(600_000)) for offset in range(8)]
    sending = Sending(*large, settings=SendingSettings(window_bytes=2 << 20))
    sending.open()
    sending.read()
    for stored in (0, 2):
        requests = sending.all(SendEntries)
        assert sum(request.size for request in requests) == sending.sender.inflight_bytes == 4 * 600_000
        sending.acknowledge(sending.sent())
        sending.fail(requests[-1], DisconnectedError("lost"))
        assert sending.sender.inflight_bytes == 0
        sending.effects = [*sending.all(WakeAt)]
        sending.wake()
        sending.open(stored + 2, last_of(large[stored + 1]))
        sending.check()
        sending.read()


def test_the_rate_bounds_bytes_per_second() -> None:
    large = [entry(offset, value=bytes(1 << 20)) for offset in range(10)]
    sending = Sending(*large, settings=SendingSettings(rate_bytes=1 << 20, window_bytes=1 << 30))
    sending.open()
    sending.read()
    sizes = 0
    while sending.now_us < 5_000_000:
        sizes += sum(request.size for request in sending.all(SendEntries))
        sending.effects = [one for one in sending.effects if isinstance(one, WakeAt)]
        sending.wake()
    assert 5 << 20 <= sizes <= 7 << 20


def test_lag_is_right_while_disconnected() -> None:
    sending = Sending(entry(0), entry(1))
    assert (sending.sender.unsent_messages, sending.sender.oldest_unsent_us) == (2, START_US)
    sending.open()
    sending.read()
    sending.acknowledge(sending.sent())
    assert (sending.sender.unsent_messages, sending.sender.oldest_unsent_us) == (0, None)
    sending.now_us = 5_000_000
    sending.grow(entry(2))
    effect = sending.take(ReadEntries)
    sending.do(sending.sender.lost, effect.attempt, OWN, DisconnectedError("lost"))
    sending.now_us = 9_000_000
    sending.grow(entry(3))
    assert (sending.sender.unsent_messages, sending.sender.oldest_unsent_us) == (2, START_US + 5_000_000)


def test_another_thread_asks_for_the_oldest_unsent_message_while_requests_are_sent() -> None:
    """`Replicator.status` does so, in the thread of its caller."""
    sending = Sending()
    sending.open()
    requests, firsts = deque[SendEntries](), count()
    oldest: list[int | None] = []

    def send() -> None:
        sending.grow(entry(next(firsts)))
        sending.read()
        requests.append(sending.sent())
        if len(requests) > 40:
            sending.acknowledge(requests.popleft())
        sending.effects.clear()

    race(3000, send, lambda: oldest.append(sending.sender.oldest_unsent_us))
    assert oldest[-1] == START_US and START_US in oldest[: len(oldest) // 2]


def test_errors_that_go_away_are_tried_again_and_others_rarely() -> None:
    for error, failed, seconds in (
        (BacklogFullError("t", "full"), False, 1.0),
        (UnsupportedRequestError("old"), True, RETRY_MOST_S),
    ):
        sending = Sending(entry(0))
        effect = sending.take(OpenOrigin)
        sending.do(sending.sender.lost, effect.attempt, OWN, error)
        assert sending.sender.is_failed is failed
        assert (sending.all(WakeAt)[-1].at_us >= seconds * 1e6) is failed
        sending.wake()
        sending.open()
        assert not sending.sender.is_failed and sending.sender.error is None


def test_a_sender_pauses_and_takes_other_settings() -> None:
    sending = Sending(entry(0), foreign(1, 0))
    sending.effects += sending.sender.pause()
    assert sending.sender.state is SenderState.PAUSED
    sending.take(OpenOrigin)
    sending.do(sending.sender.resume)
    sending.open()
    sending.read()
    sending.acknowledge(sending.sent())
    sending.do(sending.sender.configure, SendingSettings(window_bytes=1 << 20))
    assert sending.sender.state is SenderState.SENDING
    sending.do(sending.sender.configure, ALL)
    assert sending.sender.state is SenderState.OPENING
    sending.effects += sending.sender.close()
    sending.do(sending.sender.resume)
    assert sending.sender.state is SenderState.CLOSED


# ---- other origins ---------------------------------------------------------------------------------------------


def test_messages_of_others_are_sent_on_as_theirs() -> None:
    gaps = (Gap(68, 70, GapCause.FILTERED),)
    sending = Sending(entry(0), foreign(1, 70, 2, gaps), entry(3), settings=ALL)
    sending.open()
    sending.read()
    own = sending.sent()
    assert sending.open(60).origin == OTHER
    forwarded, rest = sending.sent(), sending.sent()
    assert [sent.first for sent in own.entries] == [0] and forwarded.origin == OTHER
    assert forwarded.entries[0].gaps == (Gap(60, 70, GapCause.FILTERED),)
    assert forwarded.entries[0].publish_time_us == START_US - 1
    assert rest.entries[0].gaps == (Gap(1, 3, GapCause.FOREIGN),)
    sending.acknowledge(own)
    sending.acknowledge(rest)
    # the entry of the other origin is not stored at the target yet
    assert sending.sender.stored == 4 and sending.progress().mark == 1
    sending.acknowledge(forwarded)
    assert sending.progress().mark == 4


def last_forwarded(sent: SourceEntry) -> LastEntry:
    end = sent.origin_first + sent.messages
    return LastEntry(sent.origin_first, end, crc32c(sent.value), sent.origin_time_us)


@pytest.mark.parametrize("ahead", [0, 1], ids=["equal", "ahead"])
def test_forwarded_messages_are_compared_with_the_last_ones_of_the_target(ahead: int) -> None:
    """They are compared when they are read: the target may have got them earlier, from another cluster."""
    entries = [foreign(0, 70), foreign(1, 71), foreign(2, 72)]
    for is_same in (True, False):
        last = last_forwarded(entries[1 + ahead])
        sending = Sending(*entries[: 2 + ahead], settings=ALL)
        sending.open()
        sending.read()
        sending.open(72 + ahead, last if is_same else last._replace(value_crc=7))
        if is_same:
            assert not sending.all(SendEntries)
            sending.wake()
            sending.acknowledge(sending.sent())
            assert sending.progress().others[OTHER] == position(72 + ahead, last)
        else:
            assert sending.sender.state is SenderState.DIVERGED and not sending.all(SendEntries)
            (alarm,) = sending.alarms()
            assert OTHER.cluster.hex() in alarm and "0x00000007" in alarm and "in the publishing cluster" in alarm


def test_forwarded_messages_that_were_sent_before_are_compared_with_what_was_noted() -> None:
    """The entry is below the stored position of the cursor, and is not read again."""
    entries = [foreign(0, 70), foreign(1, 71)]
    noted = last_forwarded(entries[0])
    for last in (noted, noted._replace(publish_time_us=5)):
        sending = Sending(
            *entries, settings=ALL, mark=1, own_position=position(1), positions={OTHER: position(71, noted)}
        )
        sending.open(1)
        sending.read()
        sending.open(71, last)
        assert (sending.sender.state is SenderState.DIVERGED) is (last != noted)
        assert bool(sending.all(SendEntries)) is (last == noted)


def test_after_a_resync_forwarded_messages_go_on_behind_those_of_the_target() -> None:
    entries = [foreign(0, 70), foreign(1, 71)]
    other = last_forwarded(entries[0])._replace(value_crc=7)
    sending = Sending(*entries, settings=ALL)
    sending.open()
    sending.read()
    sending.open(71, other)
    assert sending.sender.state is SenderState.DIVERGED
    sending.effects.clear()
    sending.do(sending.sender.resync)
    sending.open()
    sending.read()
    sending.open(71, other)
    assert [sent.first for sent in sending.sent().entries] == [71]
    assert sending.sender.state is SenderState.SENDING


def test_after_a_resync_forwarded_messages_are_read_again_until_the_target_has_them() -> None:
    """After a reconnect, the target has the messages of this cluster, and lacks the forwarded ones before them."""
    entries = [foreign(0, 0), entry(1), foreign(2, 1)]
    sending = Sending(*entries, settings=ALL, own_position=position(3, last_of(entries[1])), mark=3)
    sending.open()  # the topic of the target was deleted
    assert sending.sender.state is SenderState.DIVERGED
    sending.do(sending.sender.resync)
    assert sending.sender.mark == 0
    sending.open()
    sending.read()
    sending.take(OpenOrigin)  # an entry of the other cluster, for which no answer arrives
    effect = sending.sender.attempt
    sending.do(sending.sender.lost, effect, OWN, DisconnectedError("lost"))
    sending.wake()
    sending.open(2, last_of(entries[1]))
    sending.check()
    sending.read()
    assert sending.sender.mark == 0
    sending.open(0)
    assert [sent.first for sent in sending.sent().entries] == [0]


# ---- another identity ------------------------------------------------------------------------------------------

FORMER = Origin(OWN.cluster, "former")


def formerly(first: int, messages: int = 1) -> SourceEntry:
    """Return an entry that was published before the topic got another identity."""
    return entry(first, messages)._replace(origin=FORMER, origin_first=first, origin_time_us=START_US)


def test_resync_gives_another_identity_if_the_target_has_what_is_not_here() -> None:
    sending = Sending(*map(entry, range(4)), own_position=position(2, last_of(entry(1))), mark=2)
    sending.open(9, last_of(entry(8)))
    assert sending.sender.state is SenderState.DIVERGED and "another" not in sending.alarms()[0]
    assert "rolled back" in sending.alarms()[0] and "resync" in sending.alarms()[0]
    sending.do(sending.sender.resync)
    assert sending.take(RenewOrigin) == RenewOrigin(2, position(2, last_of(entry(1))))
    assert sending.sender.state is SenderState.DIVERGED and not sending.all(OpenOrigin)


def test_messages_of_the_former_identity_keep_it() -> None:
    """Also with forward=own. The cursor waits for them, although the target has all messages of the present identity."""
    former = [formerly(0), formerly(1), foreign(2, 7), formerly(3)]
    sending = Sending(*former, entry(4), mark=1, begin=1, former=4, withheld=GapCause.DUPLICATE)
    sending.open()
    sending.read()
    assert sending.open(1, last_of(entry(0))).origin == FORMER
    first, own = sending.all(SendEntries)
    assert (first.origin, [sent.first for sent in first.entries]) == (FORMER, [1, 3])
    assert first.entries[1].gaps == (Gap(2, 3, GapCause.FOREIGN),)
    assert own.entries[0].gaps == (Gap(0, 1, GapCause.DUPLICATE), Gap(1, 4, GapCause.FOREIGN))
    sending.acknowledge(own)
    assert sending.sender.stored == 5 and sending.progress().mark == 1
    sending.fail(first, DisconnectedError("lost"))
    sending.effects = [*sending.all(WakeAt)]
    sending.wake()
    sending.open(5, last_of(entry(4)))
    sending.check()
    sending.read()
    sending.open(1, last_of(entry(0)))
    again = sending.sent()
    assert (again.origin, [sent.first for sent in again.entries]) == (FORMER, [1, 3])
    sending.acknowledge(again)
    assert sending.progress().mark == 5


def test_a_target_that_has_the_former_identity_gets_nothing_again() -> None:
    sending = Sending(formerly(0), entry(1), mark=1, begin=1, former=1, withheld=GapCause.DUPLICATE)
    sending.open()
    sending.read()
    (sent,) = sending.sent().entries
    assert sent.first == 1 and sent.gaps == (Gap(0, 1, GapCause.DUPLICATE),) and not sending.all(OpenOrigin)


def test_nothing_goes_back_to_its_origin() -> None:
    back = Origin(TARGET, "theirs")
    sending = Sending(foreign(0, 5, origin=back), entry(1), settings=ALL)
    sending.open()
    sending.read()
    assert [(request.origin, request.entries[0].first) for request in sending.all(SendEntries)] == [(OWN, 1)]
    assert not sending.all(OpenOrigin)


def test_only_chosen_clusters_are_forwarded() -> None:
    settings = SendingSettings(forward_all=True, forward_from=frozenset((b"D" * 16,)))
    sending = Sending(foreign(0, 5), entry(1), settings=settings)
    sending.open()
    sending.read()
    assert [request.origin for request in sending.all(SendEntries)] == [OWN] and not sending.all(OpenOrigin)


def test_an_origin_that_another_source_sends_is_left_to_it_for_a_while() -> None:
    sending = Sending(foreign(0, 0), entry(1), settings=ALL)
    sending.open()
    sending.read()
    effect = sending.take(OpenOrigin)
    sending.do(sending.sender.lost, effect.attempt, OTHER, OriginSessionError("t", "fenced"))
    request = sending.sent()
    assert request.origin == OWN
    sending.acknowledge(request)
    assert sending.sender.stored == 2 and sending.progress().mark == 0
    sending.wake()
    again = sending.open(2, last_of(entry(1)))
    sending.check()
    sending.read()
    higher = sending.take(OpenOrigin)
    assert higher.session > effect.session + (1 << 32) and again.session > 1 << 32
    sending.do(sending.sender.opened, higher.attempt, OTHER, TARGET, OriginState(1, None))
    assert sending.progress().mark == 2 and not sending.all(SendEntries)


def test_a_cluster_is_no_target_of_its_own() -> None:
    sending = Sending(entry(0))
    sending.open(cluster=OWN.cluster)
    assert sending.sender.is_failed and not sending.all(ReadEntries)
