"""Objects below a URL, through fsspec. Credentials come from options or the environment, and appear in no message."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pyreplog.errors import (
    ConfigError,
    CorruptionError,
    MissingExtraError,
    NotALogError,
    ObjectCorruptionError,
    ReplogError,
    StorageError,
)
from pyreplog.log.files import Files, RealFiles
from pyreplog.offload import local_files
from pyreplog.regular_files import check_regular

BLOCK_BYTES = 16 << 20
"""Memory of one upload, bytes."""

_URL = re.compile(r"[a-z][a-z0-9+.-]*://.+", re.IGNORECASE)
_WITH_PASSWORD = re.compile(r"[^/]*//[^/@]*:[^/@]*@")


@dataclass(frozen=True)
class Storage:
    """The objects below a URL.

    It can be pickled, and threads may share it. No message contains the credentials in `options`.

    Attributes:
        url: "s3://bucket/prefix" or "file:///directory", without credentials.
        options: options of fsspec's file system, as a JSON object.
        files: access to the disk if the objects are files; another process uses its own.

    Raises:
        ConfigError: `url` is not a URL, or contains credentials.

    Example:
        ```python
        print(load(Storage("s3://bucket/orders")).end)
        ```
    """

    url: str
    options: str = field(default="{}", repr=False)
    files: Files = field(default=RealFiles(), repr=False, compare=False)

    def __post_init__(self) -> None:
        if _WITH_PASSWORD.match(self.url):
            raise ConfigError(
                "url: expected a URL without credentials, found one with a password: pass it in storage_options (in "
                "Spark: storageOptions), or in the environment"
            )
        if not _URL.fullmatch(self.url):
            raise ConfigError(f"url: expected s3://bucket/prefix or file:///directory, found {self.url!r}")
        object.__setattr__(self, "url", self.url.rstrip("/"))

    def __reduce__(self) -> tuple[type[Storage], tuple[str, str]]:
        return type(self), (self.url, self.options)

    def of(self, name: str) -> str:
        """Return the URL of an object.

        Args:
            name: name of the object.
        """
        return f"{self.url}/{name}"

    @property
    def folder(self) -> Path | None:
        """Directory of the objects if they are files; otherwise None."""
        return self._opened[1]

    @cached_property
    def _opened(self) -> tuple[Any, Path | None, str]:
        """(file system, directory if it is local, path in it). Raises ConfigError and MissingExtraError."""
        try:
            import fsspec
            from fsspec.implementations.local import LocalFileSystem
        except ImportError as error:
            raise MissingExtraError(f"{self.url} needs fsspec: pip install 'pyreplog[offload]' ({error})") from error
        try:
            system, path = fsspec.url_to_fs(self.url, **json.loads(self.options))
        except ImportError as error:
            raise MissingExtraError(f"{self.url}: {error}") from None
        except Exception as error:  # each file system has exceptions of its own
            raise ConfigError(f"{self.url} cannot be opened: {self._error_text(error)}") from None
        return system, Path(path) if isinstance(system, LocalFileSystem) else None, path

    # ---- reading ------------------------------------------------------------------------------------------------

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Read bytes of an object. Raises ObjectCorruptionError if it is missing or shorter, and StorageError."""
        system, folder, path = self._opened
        try:
            if folder is not None:
                check_regular(folder / name)
            with self._doing(f"bytes {start} to {stop} of {name} cannot be read", FileNotFoundError):
                data: bytes = system.cat_file(f"{path}/{name}", start=start, end=stop)
        except FileNotFoundError:
            raise ObjectCorruptionError(self.of(name), start, f"{stop - start} bytes", "no object") from None
        except CorruptionError as error:
            raise ObjectCorruptionError(self.of(name), start, error.expected, error.found) from None
        if len(data) != stop - start:
            raise ObjectCorruptionError(self.of(name), start, f"{stop - start} bytes", f"{len(data)}")
        return data

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes; None: it does not exist.

        Raises NotALogError if the directory of all objects does not exist on this host, and StorageError.
        """
        system, folder, path = self._opened
        try:
            with self._doing(f"{name} cannot be examined", FileNotFoundError):
                return int(system.info(f"{path}/{name}")["size"])
        except FileNotFoundError:
            if folder is not None and not folder.is_dir():
                raise NotALogError(f"{self.url}: no such directory on host {socket.gethostname()}") from None
            return None

    def sizes(self, under: str) -> dict[str, int]:
        """Return the current names and sizes of the objects directly below a prefix. Raises StorageError."""
        system, _, path = self._opened
        try:
            with self._doing(f"{under} cannot be listed", FileNotFoundError):
                system.invalidate_cache()
                rows = system.ls(f"{path}/{under}", detail=True)
        except FileNotFoundError:
            return {}
        rows_by_name = {f"{under}/{row['name'].rpartition('/')[2]}": row for row in rows}
        return {name: int(row["size"]) for name, row in rows_by_name.items() if row["type"] == "file"}

    # ---- writing ------------------------------------------------------------------------------------------------

    def put(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Write an object as a whole or not at all, and replace one of its name. Raises StorageError."""
        system, folder, path = self._opened
        with self._doing(f"{name} cannot be written"):
            if folder is not None:
                local_files.put(folder / name, parts, self.files)
                return
            file = system.open(f"{path}/{name}", "wb", block_size=BLOCK_BYTES, autocommit=False)
            try:
                for part in parts:
                    file.write(part)
                file.close()
                file.commit()
            except BaseException:
                file.discard()
                raise

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless one of its name exists; return whether it was written.

        Raises StorageError, after which the outcome is unknown.
        """
        system, folder, path = self._opened
        try:
            with self._doing(f"{name} cannot be created", FileExistsError):
                if folder is not None:
                    local_files.create(folder / name, data, self.files)
                else:
                    system.pipe_file(f"{path}/{name}", data, mode="create")
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove an object, if it exists. Raises StorageError."""
        system, folder, path = self._opened
        try:
            with self._doing(f"{name} cannot be removed", FileNotFoundError):
                if folder is not None:
                    self.files.remove(folder / name)
                else:
                    system.rm_file(f"{path}/{name}")
        except FileNotFoundError:
            pass

    def sweep(self, under: str) -> None:
        """Remove files of writers that were killed. Raises StorageError."""
        folder = self.folder
        if folder is not None:
            with self._doing(f"{under} cannot be cleared"):
                local_files.sweep(folder / under, self.files)

    # ---- errors -------------------------------------------------------------------------------------------------

    @contextmanager
    def _doing(self, action: str, answer: type[OSError] | tuple[()] = ()) -> Iterator[None]:
        """Turn the exceptions of any file system into StorageError.

        answer: the exception that says whether an object exists; it is raised as it is.
        """
        try:
            yield
        except ReplogError:
            raise
        except Exception as error:
            if isinstance(error, answer):
                raise
            raise StorageError(f"{self.url}: {action}: {self._error_text(error)}") from None

    def _error_text(self, error: Exception) -> str:
        """Return the text of an error in one line, without the values of `options`."""
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        for secret in sorted(_texts(json.loads(self.options)), key=len, reverse=True):
            text = text.replace(secret, "...")
        return text


def options_text(options: object) -> str:
    """Return options of a file system as a JSON object. Raises ConfigError, which does not repeat them."""
    try:
        parsed = json.loads(options) if isinstance(options, str) else options
        if isinstance(parsed, dict):
            return json.dumps(parsed, sort_keys=True)
    except (ValueError, TypeError):
        pass
    raise ConfigError(
        "storageOptions: expected a JSON object with options of fsspec's file system, found something else"
    )


def _texts(value: object, name: str = "") -> Iterator[str]:
    """Yield all texts in options, except those that only locate the store."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, name)
    elif isinstance(value, str) and len(value) > 3 and not name.endswith(("url", "region", "region_name")):
        yield value
