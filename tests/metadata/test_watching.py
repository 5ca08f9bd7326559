"""The thread that tells watchers, by itself: what comes before what."""

from __future__ import annotations

import threading
from itertools import chain, repeat

from pyreplog.metadata import watching
from pyreplog.metadata.watching import Watchers
from tests.waiting import until


def test_a_key_is_armed_before_its_watchers_look():
    """Else a change between their look and the arming would go unheard."""
    done: list[str] = []
    watchers = Watchers(arm=lambda key: done.append(f"arm {key}") or True)
    watchers.add("/a", lambda key: done.append(f"tell {key}"))
    until(lambda: done == ["arm /a", "tell /a"])
    watchers.changed(["/a", "/not watched"])
    until(lambda: done == ["arm /a", "tell /a"] * 2)
    watchers.stop()


def test_watch_that_cannot_be_armed_is_retried_before_its_callback_runs(monkeypatch):
    monkeypatch.setattr(watching, "RETRY_S", 600.0)
    answers = chain([False, False], repeat(True))  # a third attempt may come before everybody is told
    tried: list[bool] = []
    told: list[str] = []

    def arm(key: str) -> bool:
        tried.append(next(answers))
        return tried[-1]

    watchers = Watchers(arm=arm)
    watchers.add("/a", told.append)
    until(lambda: tried)
    assert not told
    monkeypatch.setattr(watching, "RETRY_S", 0.01)
    watchers.all_changed()  # as after a reconnection: at once
    until(lambda: told)  # and by itself, after a while
    assert tried[:3] == [False, False, True]
    watchers.stop()


def test_change_during_a_callback_calls_it_again_afterwards():
    entered, go_on = threading.Event(), threading.Event()
    told: list[str] = []

    def slow(key: str) -> None:
        told.append(key)
        entered.set()
        assert go_on.wait(60)

    watchers = Watchers()
    watchers.add("/a", slow)
    assert entered.wait(60)
    watchers.changed(["/a"])
    watchers.changed(["/a"])
    go_on.set()
    until(lambda: told == ["/a", "/a"])
    watchers.stop()


def test_polling_calls_watchers_of_changed_keys():
    """It begins when both have had the call that every watch begins with."""
    polls = iter([["/a"], [], ["/b"]])
    told: list[str] = []
    watchers = Watchers(poll=lambda keys: next(polls, []) if set(told) == {"/a", "/b"} else [], interval=0.001)
    watchers.add("/a", told.append)
    watchers.add("/b", told.append)
    until(lambda: len(told) >= 4)
    watchers.stop()
    assert sorted(told[:2]) == ["/a", "/b"] and told[2:] == ["/a", "/b"]


def test_no_callback_runs_after_stop():
    told: list[str] = []
    watchers = Watchers()
    watch = watchers.add("/a", told.append)
    until(lambda: told)
    watchers.stop()
    watchers.add("/a", told.append)
    watchers.changed(["/a"])
    watchers.all_changed()
    watch.close()
    assert told == ["/a"]
