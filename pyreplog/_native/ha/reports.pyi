from typing import NamedTuple

from _typeshed import ReadableBuffer

from pyreplog._native.log.mark import Mark
from pyreplog._native.net.frame import FrameBatch

class Progress(NamedTuple):
    received: Mark
    synced: Mark

def progress_from(received: Mark, synced: Mark, /) -> Progress: ...
def encode_report(received: tuple[int, int], synced: tuple[int, int], /) -> bytes: ...
def report_alone(batch: FrameBatch, /) -> Progress | None: ...
def decode_report(body: ReadableBuffer, /) -> Progress | None: ...
