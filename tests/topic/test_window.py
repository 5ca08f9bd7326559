"""The limit of messages in flight of a topic: ledgers are asked rarely, and the limit still holds."""

from __future__ import annotations

from pyreplog.topic.client.publishing.window import Window


class Ledgers:
    """Fake ledgers that hold all entries until their copies are complete."""

    def __init__(self) -> None:
        self.bytes = self.entries = self.asked = 0

    def held(self) -> tuple[int, int]:
        self.asked += 1
        return self.bytes, self.entries


def filled(window: Window, ledgers: Ledgers, size: int) -> int:
    """Return how many entries of a size are accepted, when each has its outcome at once."""
    count = 0
    while window.has_room() and count < 2000:
        window.enter(size, 1)
        ledgers.bytes += size
        ledgers.entries += 1
        window.leave(size, 1)
        count += 1
    return count


def test_window_limit_holds_though_ledgers_are_not_asked_for_every_entry() -> None:
    for size, bytes_max, entries_max in ((100, 100_000, 1 << 20), (1, 1 << 30, 1000)):
        ledgers = Ledgers()
        window = Window(bytes_max, 1 << 20, entries_max=entries_max, beyond=ledgers.held)
        assert filled(window, ledgers, size) == 1000
        assert ledgers.asked < 50
        ledgers.bytes, ledgers.entries = ledgers.bytes // 2, 500
        assert filled(window, ledgers, size) == 500


def test_window_counts_entries_without_an_outcome() -> None:
    window = Window(1000, 1 << 20, beyond=lambda: (0, 0))
    for _ in range(10):
        assert window.has_room()
        window.enter(100, 1)
    assert not window.has_room() and window.has_room(2)
    window.leave(100, 1)
    assert window.has_room() and not window.has_room(0.5)


def test_a_held_publisher_waits_although_there_is_room() -> None:
    window = Window(1000, 1 << 20, beyond=lambda: (0, 0))
    assert window.has_room()
    window.is_held = True
    assert not window.has_room() and window.has_room(2), "callers that cannot wait go on"
    room = window.room()
    window.give_room()
    assert not room.done() and window.waiting == 1
    window.is_held = False
    window.give_room()
    assert room.done() and window.waiting == 0 and window.has_room()
