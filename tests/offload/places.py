"""Where tests offload to, and how they look at it and damage it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa

from pyreplog.offload import manifest
from pyreplog.offload.copying import Copied, offload
from pyreplog.offload.manifest import Offloaded
from pyreplog.offload.storage import Storage
from tests.spark.reading import read_table

KEY, SECRET = "a-key-that-nobody-sees", "a-secret-that-nobody-sees"


@contextmanager
def serve_s3() -> Iterator[dict[str, Any]]:
    """Options of an S3 server on the loopback, with the bucket `bucket`."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        patience = {"connect_timeout": 120, "read_timeout": 120}
        options = {"key": KEY, "secret": SECRET, "endpoint_url": f"http://{host}:{port}", "config_kwargs": patience}
        fsspec.filesystem("s3", **options).makedirs(
            "bucket", exist_ok=True
        )  # servers of a process have the same buckets
        yield options
    finally:
        server.stop()


@dataclass(frozen=True)
class Place:
    """A URL, and options for what it lies on."""

    url: str
    options: dict[str, Any]

    @property
    def storage(self) -> Storage:
        return Storage(self.url, json.dumps(self.options))

    @property
    def folder(self) -> Path:
        return Path(self.url.removeprefix("file://"))

    @property
    def manifest(self) -> Offloaded:
        return manifest.load(self.storage)

    def copy(self, log: Path) -> Copied:
        return offload(log, self.url, storage_options=self.options)

    def table(self, **options: object) -> pa.Table:
        return read_table(self.url, storageOptions=json.dumps(self.options), **options)

    def column(self, name: str, **options: object) -> list[Any]:
        rows: list[Any] = self.table(columns=name, **options)[name].to_pylist()
        return rows

    def names(self) -> set[str]:
        """Of all objects."""
        return {*self.storage.sizes(manifest.SEGMENTS), *self.storage.sizes(manifest.MANIFESTS)}

    def change(self, name: str, at: int, data: bytes) -> None:
        """Bytes of an object."""
        whole = bytearray(self.bytes_of(name))
        whole[at : at + len(data)] = data
        self.storage.put(name, [bytes(whole)])

    def bytes_of(self, name: str) -> bytes:
        size = self.storage.size(name)
        assert size is not None
        return self.storage.read(name, 0, size)
