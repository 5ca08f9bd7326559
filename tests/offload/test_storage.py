"""Object stores as offloads use them: whole objects or none, errors with names, and no secret in any message."""

from __future__ import annotations

import builtins
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog.errors import ConfigError, MissingExtraError, NotALogError, ObjectCorruptionError, StorageError
from pyreplog.log.files import RealFiles
from pyreplog.offload import local_files
from pyreplog.offload.storage import Storage, options_text
from pyreplog.tables.planning import plan
from tests import samples
from tests.offload.places import KEY, SECRET, Place, serve_s3
from tests.spark.reading import options_of, read_slices


def failing() -> Iterator[bytes]:
    yield b"x" * 100_000
    raise RuntimeError("half way")


def test_a_storage_puts_reads_lists_and_removes_objects(place: Place) -> None:
    storage = place.storage
    assert storage.sizes("a") == {}
    storage.put("a/b", [b"0123", memoryview(b"456789")])
    assert storage.size("a/none") is None
    assert storage.read("a/b", 3, 7) == b"3456"
    assert pickle.loads(pickle.dumps(storage)).size("a/b") == 10
    assert storage.create("a/c", b"first")
    assert not storage.create("a/c", b"second")
    assert storage.read("a/c", 0, 5) == b"first"
    assert storage.sizes("a") == {"a/b": 10, "a/c": 5}
    for name, stop in (("a/b", 11), ("a/none", 1)):
        with pytest.raises((ObjectCorruptionError, StorageError), match=name):
            storage.read(name, 0, stop)
    storage.remove("a/b")
    storage.remove("a/b")
    assert storage.sizes("a") == {"a/c": 5}


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_an_object_that_fails_half_way(kind: str, folder: Place, request: pytest.FixtureRequest) -> None:
    """It is not there, and one of its name stays."""
    place = folder if kind == "file" else Place("s3://bucket/half", request.getfixturevalue("s3"))
    place.storage.put("a/b", [b"old"])
    with pytest.raises(StorageError, match="a/b cannot be written: RuntimeError: half way"):
        place.storage.put("a/b", failing())
    assert place.bytes_of("a/b") == b"old"
    assert place.storage.sizes("a") == {"a/b": 3}


def test_large_objects_are_sent_in_parts(s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyreplog.offload.storage.BLOCK_BYTES", 5 << 20)
    place = Place("s3://bucket/large", s3)
    parts = [bytes([n]) * (1 << 20) for n in range(12)]
    place.storage.put("a/b", parts)
    assert place.bytes_of("a/b") == b"".join(parts)


def test_drafts_of_the_living_stay(tmp_path: Path) -> None:
    seen = []

    def parts() -> Iterator[bytes]:
        yield b"12"
        local_files.sweep(tmp_path, RealFiles())
        seen.extend(tmp_path.glob(f"*{local_files.PART}"))
        yield b"34"

    local_files.put(tmp_path / "a", parts(), RealFiles())
    assert len(seen) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/x", "memory://user:word@there"])
def test_urls_with_credentials_are_refused_without_showing_them(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Storage(url)
    assert "secret" not in str(caught.value) and "word" not in str(caught.value).replace("password", "")


def test_invalid_urls_and_options_raise_config_error(tmp_path: Path) -> None:
    for url in ("nothing", str(tmp_path), "://x"):
        with pytest.raises(ConfigError, match="url: expected s3://"):
            Storage(url)
    with pytest.raises(ConfigError, match="nosuch://a cannot be opened"):
        Place("nosuch://a/b".removesuffix("/b"), {}).table()
    with pytest.raises(NotALogError, match="no log"):
        Place(f"file://{tmp_path}", {}).table()
    for text in ("[1]", "{", '"a-secret"'):
        with pytest.raises(ConfigError, match="storageOptions: expected a JSON object") as caught:
            options_of("memory://x", storageOptions=text)
        assert "a-secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="storageOptions"):
        options_text({"a": object()})


def test_a_directory_that_this_host_does_not_see(folder: Place, tmp_path: Path) -> None:
    samples.make_log(tmp_path / "log")
    folder.copy(tmp_path / "log")
    options = options_of(folder.url, columns="offset")
    tasks = plan(options)
    folder.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(NotALogError, match=f"{folder.url}: no such directory on host"):
        read_slices(options, tasks)


def test_offloads_without_fsspec_name_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def missing(name: str, *given: Any) -> Any:
        if name == "fsspec":
            raise ImportError("No module named 'fsspec'")
        return imported(name, *given)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'pyreplog\[offload\]'"):
        Place("s3://bucket/x", {}).table()


def test_storage_errors_contain_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has gone: what botocore says of it is told, with the URL, and without what was given in confidence."""
    samples.make_log(tmp_path / "log")
    with serve_s3() as options:
        place = Place("s3://bucket/secret", {**options, "config_kwargs": {"retries": {"max_attempts": 0}}})
        monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
        place.copy(tmp_path / "log")
        given = json.dumps(place.options)
        assert SECRET not in repr(options_of(place.url, storageOptions=given))
        assert SECRET not in repr(plan(options_of(place.url, storageOptions=given)))
    with pytest.raises(StorageError, match="s3://bucket/secret: manifests cannot be listed") as caught:
        place.table()
    assert caught.value.__cause__ is None
    assert KEY not in str(caught.value) and SECRET not in str(caught.value)
    wrong = {**place.options, "nosuch": SECRET}
    with pytest.raises((ConfigError, StorageError)) as told:
        Place(place.url, wrong).table()
    assert SECRET not in str(told.value)


def test_options_come_from_the_environment(s3: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.config import conf

    samples.make_log(tmp_path / "log")
    archive = Place("s3://bucket/environment", s3).copy(tmp_path / "log")
    monkeypatch.setitem(conf, "s3", s3)  # as fsspec takes it from FSSPEC_S3_*, when it is imported
    assert len(Place("s3://bucket/environment", {}).table()) == archive.manifest.end
