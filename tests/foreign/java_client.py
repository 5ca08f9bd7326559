"""JavaClient: Kafka's Java client in a process of its own, which takes one command at a time."""

from __future__ import annotations

import io
import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from tests.foreign.maven import JAVA, compile_java, fetch_jars

_HERE = Path(__file__).parent / "clients"


class JavaClientError(Exception):
    """A call of Kafka's client failed, as the text says, which begins with the name of the exception's class."""


class Record(NamedTuple):
    """A record. partition -1: the producer chooses one. time_ms -1: now."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int = -1
    time_ms: int = -1
    offset: int = -1


class JavaClient:
    """Runs `clients/KafkaClients.java`.

    Args:
        servers: the value of `bootstrap.servers`.
        folder: for files of records, and of what Java says.
    """

    def __init__(self, servers: str, folder: Path) -> None:
        class_path = compile_java(_HERE / "KafkaClients.java", fetch_jars(_HERE / "pom.xml"))
        self._folder = folder
        self._log = (folder / "java.log").open("w+b")
        self._process = subprocess.Popen(
            ["java", *JAVA, f"-Djava.io.tmpdir={folder}", "-cp", class_path, "KafkaClients", servers],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, bufsize=1,
        )  # fmt: skip

    def call(self, *words: object) -> list[str]:
        """Run a command; return the lines of its answer. Raises JavaClientError: the call failed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\t".join(map(str, words)) + "\n")
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith("="):
                lines.append(line[1:-1])
            elif line.startswith("!"):
                raise JavaClientError(line[1:-1])
            elif line.startswith("."):
                return lines
        self._log.seek(0)
        raise ChildProcessError(f"Java has ended: {self._log.read()[-4000:]!r}")

    def produce(self, topic: str, records: Iterable[Record], **settings: object) -> list[tuple[int, int]]:
        """Send records; return their partitions and offsets. settings: those of the producer, dots as underscores."""
        path = self._folder / "sent"
        path.write_bytes(b"".join(map(_encode, records)))
        lines = self.call("produce", topic, path, *_words(settings))
        return [(int(partition), int(offset)) for partition, offset in map(str.split, lines)]

    def consume(self, topic: str, group: str, count: int, **settings: object) -> list[Record]:
        """Have a member of a group take so many records and commit; return them."""
        path = self._folder / "received"
        chosen = {"group_id": group, "auto_offset_reset": "earliest", **settings}
        self.call("consume", topic, path, count, *_words(chosen))
        return list(_decode(io.BytesIO(path.read_bytes())))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _words(settings: dict[str, object]) -> list[str]:
    return [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]


def _encode(record: Record) -> bytes:
    head = struct.pack(">iq", record.partition, record.time_ms)
    headers = b"".join(_bytes(key.encode()) + _bytes(value) for key, value in record.headers)
    return head + _bytes(record.key) + _bytes(record.value) + struct.pack(">i", len(record.headers)) + headers


def _bytes(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def _decode(file: io.BytesIO) -> Iterator[Record]:
    def number() -> int:
        return int(struct.unpack(">i", file.read(4))[0])

    def data() -> bytes | None:
        size = number()
        return None if size < 0 else file.read(size)

    while head := file.read(20):
        partition, offset, time_ms = struct.unpack(">iqq", head)
        key, value = data(), data()
        headers = tuple(((data() or b"").decode(), data() or b"") for _ in range(number()))
        yield Record(value, key, headers, partition, time_ms, offset)
