"""Topics share the limit of bytes in flight to one cluster fairly."""

from __future__ import annotations

from random import Random

from pyreplog.geo.protocol.fair_window import FairWindow


def test_topics_get_equal_shares_whatever_their_requests_are() -> None:
    window: FairWindow[str, tuple[str, int]] = FairWindow(1 << 20, 1 << 16)
    sizes = {"small": 1000, "large": 100_000}
    for key, size in sizes.items():
        for _ in range(4_000_000 // size):
            window.put(key, size, (key, size))
    shares = dict.fromkeys(sizes, 0)
    while sum(shares.values()) < 3_000_000:
        for key, size in window.take():
            shares[key] += size
            window.release(size)
    assert 0.7 < shares["small"] / shares["large"] < 1.4


def test_no_more_is_on_its_way_than_the_window_but_for_one_large_request(seed: int) -> None:
    random = Random(seed)
    window: FairWindow[int, tuple[int, int, int]] = FairWindow(1000, 100)
    out: list[tuple[int, int, int]] = []
    taken: dict[int, list[int]] = {}
    for number in range(3000):
        key, size = random.randrange(5), random.choice((0, 1, 50, 400, 5000))
        window.put(key, size, (key, size, number))
        out += window.take()
        for one in out:
            taken.setdefault(one[0], [])
        assert window.inflight_bytes == sum(size for _, size, _ in out)
        assert window.inflight_bytes <= 1000 or len([1 for _, size, _ in out if size]) == 1
        while out and (window.inflight_bytes > 800 or random.random() < 0.5):
            one = out.pop(random.randrange(len(out)))
            window.release(one[1])
    while len(window) or out:
        for _, size, _ in out:
            window.release(size)
        out = window.take()
    assert window.inflight_bytes == 0


def test_requests_of_a_topic_leave_in_order_and_can_be_dropped() -> None:
    window: FairWindow[str, int] = FairWindow(10, 100)
    for number in range(6):
        window.put("a" if number % 2 else "b", 5, number)
    assert window.take() == [0, 2]  # each topic gets one quantum a round
    assert window.drop("a") == [1, 3, 5] and window.drop("a") == []
    window.release(10)
    assert window.take() == [4] and len(window) == 0
