"""Truncation beside the threads that work on the same directory."""

from __future__ import annotations

import threading
from pathlib import Path

import pyreplog
from pyreplog.log import truncation


def test_no_segment_is_prepared_while_files_are_removed(tmp_path: Path, monkeypatch):
    """A file prepared meanwhile would be removed as one behind the cut, and entries would go into it later."""
    path, announce, preparing = tmp_path / "log", truncation.announce, list[threading.Thread]()
    with pyreplog.open(path, segment_bytes=1 << 16) as log:
        log.append_batch([b"x" * 1000] * 100)

        def announce_beside_the_housekeeper(*args) -> None:
            announce(*args)
            preparing.append(threading.Thread(target=log.run_background_tasks))
            preparing[-1].start()
            preparing[-1].join(0.2)  # comes to an end only if it may go on beside the truncation

        monkeypatch.setattr(truncation, "announce", announce_beside_the_housekeeper)
        log.truncate(50)
        preparing[0].join()
        log.append_batch([b"y" * 1000] * 200)
    with pyreplog.open(path) as log:
        assert log.end == 250 and log[249] == b"y" * 1000
