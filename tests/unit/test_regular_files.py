"""Pipes, devices and links to what never ends, in the place of files of ours: nobody waits, nobody reads for ever."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import pyreplog
from pyreplog.cli.shared import serving, tls
from pyreplog.cli.shared.settings import settings
from pyreplog.errors import CorruptionError, InvalidArgumentError, ReplogError
from pyreplog.ha.protocol.members import MembersFile
from pyreplog.ha.relay.position_file import PositionFile
from pyreplog.log import names
from pyreplog.log.files import RealFiles
from pyreplog.log.fsck import check as fsck
from pyreplog.log.unclean_shutdown_marker import UncleanShutdownMarker
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.net.credentials import Credentials
from pyreplog.offload.storage import Storage
from pyreplog.regular_files import check_regular, open_regular, read_regular
from pyreplog.rocketmq import synced_position
from pyreplog.stream.terms import TermsFile
from pyreplog.tables import logs
from pyreplog.tables.cluster.stored_metadata import StoredMetadata

KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "link to a pipe": lambda path: (os.mkfifo(path.with_name("elsewhere")), path.symlink_to("elsewhere")),
}


@pytest.fixture(params=KINDS)
def put(request: pytest.FixtureRequest) -> Callable[[Path], Path]:
    """Puts something that is no file under a name."""

    def put(path: Path) -> Path:
        path.unlink(missing_ok=True)
        KINDS[request.param](path)
        return path

    return put


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16) as log:
        log.append_batch([b"%d" % n + bytes(100) for n in range(900)])
    return tmp_path / "log"


def test_opening_what_is_no_file(put: Callable[[Path], Path], tmp_path: Path) -> None:
    path = put(tmp_path / "there")
    for call in (
        open_regular,
        check_regular,
        lambda path: read_regular(path, 10),
        lambda path: open_regular(path, os.O_RDWR),
    ):
        with pytest.raises(CorruptionError, match=r"expected a file, found a (pipe|device)"):
            call(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(CorruptionError, match="a file of 100 bytes at most, found 1099511627776 bytes"):
        read_regular(path, 100)
    os.truncate(path, 100)
    assert read_regular(path, 100) == bytes(100)


NAMES = [
    names.LOCK, names.TAIL, names.CHECKPOINT, names.TRUNCATION, names.REPLICA, names.TERMS, f"{0:020d}.log",
    f"{1 << 16:020d}.log", f"{0:020d}.idx",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_log_with_something_else_among_its_files(put: Callable[[Path], Path], name: str, log: Path) -> None:
    """Whoever looks at it says so, or does without it."""
    put(log / name)
    for look in (
        lambda: pyreplog.open(log).close(),
        lambda: pyreplog.open(log, "r").close(),
        lambda: logs.take_snapshot(log),
        lambda: fsck.check(log),
        lambda: fsck.check(shutil.copytree(log, log.with_name("copy"), symlinks=True, copy_function=_copy)),
    ):
        with contextlib.suppress(ReplogError):
            look()


def _copy(source: str, target: str) -> None:
    if Path(source).is_file():
        shutil.copy(source, target)


@pytest.mark.parametrize("name", ["metadata.sqlite", "metadata.sqlite-wal", "metadata.sqlite-shm"])
def test_metadata_that_are_no_file(put: Callable[[Path], Path], name: str, tmp_path: Path) -> None:
    SQLiteStore(tmp_path / "metadata.sqlite").close()
    put(tmp_path / name)
    for kind in (SQLiteStore, StoredMetadata):
        with pytest.raises(CorruptionError, match="expected a file"):
            kind(tmp_path / "metadata.sqlite")


@pytest.mark.parametrize("name", ["identity", "unsynced", "metadata.sqlite"])
def test_a_cluster_with_something_else_among_its_files(put: Callable[[Path], Path], name: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    pyreplog.Cluster.embedded(path, bookies=1, segment_bytes=1 << 16).close()
    put((path if name == "metadata.sqlite" else path / "bookie-0") / name)
    with pytest.raises(CorruptionError, match="expected a file"):
        pyreplog.Cluster.embedded(path, bookies=1)


def test_pipes_in_place_of_small_files_are_refused(put: Callable[[Path], Path], tmp_path: Path) -> None:
    for name, look in (
        ("unsynced", lambda path: UncleanShutdownMarker(path.parent, RealFiles()).last_shutdown_was_unclean()),
        ("members", lambda path: MembersFile(path.parent, RealFiles())),
        ("terms", lambda path: TermsFile(path.parent, RealFiles())),
        ("position", lambda path: PositionFile(path).load()),
        (synced_position.NAME, lambda path: synced_position.load(path.parent)),
    ):
        (tmp_path / "elsewhere").unlink(missing_ok=True)
        with pytest.raises(CorruptionError, match="expected a file"):
            look(put(tmp_path / name))


def test_secrets_certificates_and_settings(put: Callable[[Path], Path], tmp_path: Path) -> None:
    path = put(tmp_path / "file")
    text = str(path)
    for call in (
        lambda: serving.secret(path),
        lambda: settings(argparse.Namespace(config=path, settings=[])),
        lambda: tls._trust(__import__("ssl").create_default_context(), "--tls-ca", path),
        lambda: Credentials(secret_file=text).read_secret(),
        lambda: Credentials(tls_ca=text).context(),
    ):
        with pytest.raises(InvalidArgumentError, match=r"a (pipe|device)"):
            call()


def test_pipes_in_place_of_offloaded_objects_are_refused(put: Callable[[Path], Path], tmp_path: Path) -> None:
    put(tmp_path / "object")
    with pytest.raises(CorruptionError, match=r"found a (pipe|device)"):
        Storage(f"file://{tmp_path}").read("object", 0, 10)
