"""The Sender: what it sends after which answer of the target, and what it does when something fails."""

from __future__ import annotations

import pytest

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
from pyreplog.geo.protocol.effects import EntryRefused, OpenOrigin, ReadEntries, SendEntries, WakeAt
from pyreplog.geo.protocol.sending import RETRY_MOST_S, RETRY_S, SenderState, SendingSettings
from pyreplog.origins.origin import GAPS_MAX, Gap, GapCause, Origin, OriginState
from tests.geo.sending import OTHER, OWN, START_US, TARGET, Sending, entry, foreign, last_of, note

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


def test_after_a_lost_connection_the_target_says_where_to_go_on() -> None:
    """What was sent may be stored or not: neither is believed before the target says it, and nothing is skipped."""
    sending = Sending(*map(entry, range(4)), settings=SendingSettings(window_bytes=1))
    sending.open()
    sending.read()
    first = sending.sent()
    sending.acknowledge(first)
    lost = sending.sender.inflight_bytes
    sending.grow(entry(4))
    sending.read()
    request = sending.sent()
    assert not lost and request.entries[0].first == 4
    sending.fail(request, DisconnectedError("lost"))
    assert sending.sender.state is SenderState.WAITING and sending.sender.unsent_messages == 1
    assert sending.sender.inflight_bytes == 0 and not sending.all(OpenOrigin)
    sending.wake()
    newer = sending.open(5, last_of(entry(4)))
    sending.check()
    assert newer.session > 3 << 24 and not sending.all(SendEntries)
    assert sending.sender.stored == 5 and sending.sender.unsent_messages == 0


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
    """Though nothing was sent in it; after short ones they grow."""
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
        (9, None, "ends at 4"),
        (2, last_of(entry(1, value=b"another")), "CRC"),
        (2, last_of(entry(1, time_us=5)), "5 us"),
        (3, last_of(entry(1, 2)), "1 to 3"),
    ],
    ids=["ahead", "bytes", "time", "messages"],
)
def test_another_history_stops_it_until_people_decide(stored: int, last: object, words: str) -> None:
    sending = Sending(*map(entry, range(4)))
    sending.open(stored, last)  # type: ignore[arg-type]
    if last is not None:
        sending.check()
    assert sending.sender.state is SenderState.DIVERGED and words in sending.alarms()[0]
    sending.grow(entry(4))
    sending.do(sending.sender.resume)
    sending.do(sending.sender.woke)
    assert not sending.all(OpenOrigin) and not sending.all(ReadEntries) and not sending.all(SendEntries)


def test_a_target_that_has_less_than_it_said_was_rolled_back() -> None:
    sending = Sending(*map(entry, range(4)), own_note=note(3, last_of(entry(2))), mark=3)
    sending.open(2, last_of(entry(1)))
    assert sending.sender.state is SenderState.DIVERGED and "rolled back" in sending.sender.alarm
    sending.do(sending.sender.resync)
    sending.open(2, last_of(entry(1)))
    sending.read()
    assert [sent.first for sent in sending.sent().entries] == [2, 3]


def test_a_trimmed_entry_is_compared_with_what_was_noted() -> None:
    for noted, state in ((entry(1), SenderState.SENDING), (entry(1, value=b"other"), SenderState.DIVERGED)):
        sending = Sending(*map(entry, range(2, 4)), start=2, own_note=note(2, last_of(noted)), mark=2)
        sending.open(2, last_of(entry(1)))
        assert sending.sender.state is state


def test_a_history_error_of_the_gate_stops_it() -> None:
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


def test_gaps_at_the_end_are_told_after_a_while() -> None:
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


def test_a_new_target_begins_where_the_policy_says() -> None:
    sending = Sending(*map(entry, range(4)), begin=3, withheld=GapCause.FILTERED)
    sending.open()
    assert sending.all(ReadEntries)[0].offset == 3
    sending.read()
    (sent,) = sending.sent().entries
    assert sent.first == 3 and sent.gaps == (Gap(0, 3, GapCause.FILTERED),)


def test_what_was_trimmed_is_lost_with_a_cause() -> None:
    sending = Sending(*map(entry, range(4)))
    sending.open()
    effect = sending.take(ReadEntries)
    del sending.entries[:2]
    sending.do(sending.sender.read_failed, effect.attempt, TrimmedError("gone"), 2)
    sending.read()
    assert sending.sent().entries[0].gaps == (Gap(0, 2, GapCause.LOST),)


def test_entries_that_are_not_those_that_were_asked_for_are_not_sent() -> None:
    """What lies before them is not lost: it can be read again."""
    sending = Sending(*map(entry, range(4)))
    sending.open()
    effect = sending.take(ReadEntries)
    sending.do(sending.sender.came, effect.attempt, [entry(0), entry(2)])
    assert not sending.all(SendEntries) and "offset 1" in str(sending.sender.error)
    sending.wake()
    sending.open()
    sending.read()
    assert [(sent.first, sent.gaps) for sent in sending.sent().entries] == [(at, ()) for at in range(4)]


def test_an_entry_has_a_bounded_number_of_gaps() -> None:
    """More are told before it."""
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
    """Only that one: those that went with it are sent again, one at a time."""
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
        sending.effects = sending.all(WakeAt)  # type: ignore[assignment]
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


def test_pauses_and_other_settings() -> None:
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
    assert sending.sender.stored == 4 and sending.progress().mark == 1  # the other one is not stored yet
    sending.acknowledge(forwarded)
    assert sending.progress().mark == 4


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
