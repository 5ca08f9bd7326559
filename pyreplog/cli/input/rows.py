"""Consecutive rows of a source, as the columns of appends."""

from __future__ import annotations

from dataclasses import dataclass, field

KEY_MAX = 0xFFFF
LINE_MAX = 16 << 20
"""Bytes of the longest accepted line, so that a file without line feeds does not fill the memory."""


@dataclass(frozen=True)
class RowFault:
    """The reason why a row is malformed."""

    expected: str
    found: str


@dataclass(frozen=True)
class Rows:
    """Consecutive rows, each without the line feed that ends it.

    keys, times: one for each row; None without that column. dropped: indices of rows that become no entry: malformed
    rows with their fault, blank lines with None.
    """

    rows: list[bytes]
    keys: list[bytes | None] | None = None
    times: list[int | None] | None = None
    dropped: dict[int, RowFault | None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def length(self) -> int:
        """Bytes of the rows in the source, line feeds included."""
        return sum(map(len, self.rows)) + len(self.rows)

    @property
    def faults(self) -> list[tuple[int, RowFault]]:
        """Index and fault of each malformed row."""
        return [(i, fault) for i, fault in sorted(self.dropped.items()) if fault is not None]

    def part(self, start: int, stop: int) -> Rows:
        """Return the rows from `start` to before `stop`."""
        return Rows(
            self.rows[start:stop],
            self.keys[start:stop] if self.keys is not None else None,
            self.times[start:stop] if self.times is not None else None,
            {i - start: fault for i, fault in self.dropped.items() if start <= i < stop},
        )

    def kept(self) -> Rows:
        """Return the rows that become entries."""
        if not self.dropped:
            return self
        keep = [i for i in range(len(self)) if i not in self.dropped]
        return Rows(
            [self.rows[i] for i in keep],
            [self.keys[i] for i in keep] if self.keys is not None else None,
            [self.times[i] for i in keep] if self.times is not None else None,
        )
