"""Compares the acknowledgements of an origin in two clusters by digests of blocks, so that only differences are sent.

All offsets below the prefix are acknowledged; from the prefix on each block of offsets has a digest of its acknowledged
ranges. Blocks have 65,536 offsets, or a larger power of two, so that their number stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from pyreplog._native.topic.range_set import OFFSET_END, RangeSet
from pyreplog.geo.acks.messages import DigestLine
from pyreplog.geo.acks.origin_ranges import Offsets, Ranges, copy_ranges

BLOCK_BITS: Final = 16
"""Bits of an offset within its block, unless that makes more than `BLOCKS_MAX` blocks."""
BLOCKS_MAX: Final = 4096


def prefix_of(ranges: RangeSet) -> int:
    """Return the lowest offset that is not a member."""
    starts, ends = ranges.intersect(0, OFFSET_END, 1)
    return int(ends[0]) if len(starts) and starts[0] == 0 else 0


def block_bits(ranges: RangeSet, prefix: int) -> int:
    """Return the bits of an offset within its block that make at most `BLOCKS_MAX` blocks."""
    last = ranges.last
    return max(BLOCK_BITS, (max((last or 0) - prefix, 0) // (BLOCKS_MAX - 1)).bit_length())


def blocks(ranges: RangeSet, prefix: int, bits: int) -> Iterator[tuple[int, Ranges]]:
    """Yield (block, ranges) of each block that has members from `prefix` on."""
    at = ranges.next_present(prefix)
    while at is not None:
        block = at >> bits
        end = min((block + 1) << bits, OFFSET_END)
        yield block, ranges.intersect(max(prefix, block << bits), end)
        at = ranges.next_present(end)


def ranges_digest(starts: Offsets, ends: Offsets) -> bytes:
    """Return 8 bytes that stand for ranges."""
    return blake2b(starts.astype("<i8").tobytes() + ends.astype("<i8").tobytes(), digest_size=8).digest()


def digest_line(name: str, identity: bytes, ranges: RangeSet) -> DigestLine:
    """Return the digests of a subscription's acknowledgements of an origin."""
    prefix = prefix_of(ranges)
    bits = block_bits(ranges, prefix)
    digests = tuple((block, ranges_digest(*inside)) for block, inside in blocks(ranges, prefix, bits))
    return DigestLine(name, identity, prefix, bits, digests)


def differences(ranges: RangeSet, line: DigestLine | None) -> RangeSet:
    """Return the acknowledgements in blocks whose digests differ: those that the other cluster may lack.

    Args:
        ranges: the acknowledgements here.
        line: digests of the other cluster, in the same generation; None: it has no acknowledgements.
    """
    if line is None:
        return copy_ranges(ranges)
    lacking = RangeSet()
    theirs = dict(line.blocks)
    for block, inside in blocks(ranges, line.prefix, line.bits):
        if theirs.get(block) != ranges_digest(*inside):
            lacking.add_ranges(*inside)
    return lacking
