"""The stores against a dict: hypothesis drives two handles of each."""

from __future__ import annotations

import itertools
import tempfile

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pyreplog.errors import KeyExistsError, KeyNotEmptyError, NoSuchKeyError, VersionConflictError
from pyreplog.metadata import CheckExists, CreateKey, DeleteKey, Operation, PutValue, open_store

NAMES = st.sampled_from(["a", "b", "a.", "B"])
KEYS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
VALUES = st.binary(max_size=20)

_numbers = itertools.count()


class StoreMachine(RuleBasedStateMachine):
    """model[key] = value, where the current version is versions[key]; old versions are tried too."""

    url = "memory:"
    versions = Bundle("versions")

    @initialize()
    def make(self) -> None:
        if self.url.startswith("zk:"):
            url = f"{self.url}/{next(_numbers)}"
        elif self.url.startswith("sqlite:"):
            self.folder = tempfile.TemporaryDirectory(prefix="pyreplog-model-")
            url = f"sqlite://{self.folder.name}/metadata.db"
        else:
            url = self.url
        self.store = open_store(url)
        self.other = self.store if url == "memory:" else open_store(url)
        self.model: dict[str, bytes] = {}
        self.current: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.other.close()
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def children(self, key: str) -> list[str]:
        above = key.rstrip("/") + "/"
        return sorted(
            other[len(above) :] for other in self.model if other.startswith(above) and "/" not in other[len(above) :]
        )

    @rule(target=versions, key=KEYS, value=VALUES)
    def create(self, key: str, value: bytes) -> int:
        if key in self.model:
            with pytest.raises(KeyExistsError):
                self.store.create(key, value)
            return self.current[key]
        version = self.store.create(key, value)
        names = key.split("/")[1:]
        for depth in range(1, len(names)):
            parent = "/" + "/".join(names[:depth])
            if parent not in self.model:
                self.model[parent] = b""
                self.current[parent] = self.store.get(parent).version
        self.model[key], self.current[key] = value, version
        return version

    @rule(target=versions, key=KEYS, value=VALUES, version=versions, fresh=st.booleans())
    def put(self, key: str, value: bytes, version: int, fresh: bool) -> int:
        version = self.current.get(key, version) if fresh else version
        if key not in self.model:
            with pytest.raises(NoSuchKeyError):
                self.other.put(key, value, version)
        elif version != self.current[key]:
            with pytest.raises(VersionConflictError):
                self.other.put(key, value, version)
        else:
            self.model[key], self.current[key] = value, self.other.put(key, value, version)
        return self.current.get(key, version)

    @rule(key=KEYS, version=versions, fresh=st.booleans())
    def delete(self, key: str, version: int, fresh: bool) -> None:
        version = self.current.get(key, version) if fresh else version
        if key not in self.model:
            expected: type[Exception] | None = NoSuchKeyError
        elif version != self.current[key]:
            expected = VersionConflictError
        elif self.children(key):
            expected = KeyNotEmptyError
        else:
            expected = None
        if expected is None:
            self.store.delete(key, version)
            del self.model[key], self.current[key]
        else:
            with pytest.raises(expected):
                self.store.delete(key, version)

    @rule(
        kinds=st.lists(st.sampled_from(["check", "create", "put", "delete"]), min_size=1, max_size=4),
        keys=st.lists(KEYS, min_size=4, max_size=4, unique=True), value=VALUES, version=versions, fresh=st.booleans(),
    )  # fmt: skip
    def multi(self, kinds: list[str], keys: list[str], value: bytes, version: int, fresh: bool) -> None:
        """All operations or none; no key is above another one, so that each operation depends on the state before."""
        chosen = list(zip(kinds, keys, strict=False))
        assume(not any(below.startswith(above + "/") for _, above in chosen for _, below in chosen))
        operations: list[Operation] = []
        expected: type[Exception] | None = None
        for kind, key in chosen:
            wanted = self.current.get(key, version) if fresh else version
            exists, is_current = key in self.model, wanted == self.current.get(key)
            match kind:
                case "check":
                    operations.append(CheckExists(key))
                    error = None if exists else NoSuchKeyError
                case "create":
                    operations.append(CreateKey(key, value))
                    error = KeyExistsError if exists else None
                case _:
                    operations.append(
                        PutValue(key, value, wanted) if kind == "put" else DeleteKey(key, wanted)
                    )  # fmt: skip
                    error = NoSuchKeyError if not exists else None if is_current else VersionConflictError
                    if error is None and kind == "delete" and self.children(key):
                        error = KeyNotEmptyError
            expected = expected or error
        if expected is None:
            for operation, new in zip(operations, self.store.multi(operations), strict=True):
                self.apply(operation, new)
        else:
            with pytest.raises(expected):
                self.store.multi(operations)
        for operation in operations:  # parents that were created may stay after an error
            if isinstance(operation, CreateKey):
                self.add_parents(operation.key)

    def apply(self, operation: Operation, new: int | None) -> None:
        match operation:
            case CreateKey(key, value) | PutValue(key, value, _):
                self.model[key], self.current[key] = value, new
            case DeleteKey(key, _):
                del self.model[key], self.current[key]

    def add_parents(self, key: str) -> None:
        names = key.split("/")[1:]
        for depth in range(1, len(names)):
            parent = "/" + "/".join(names[:depth])
            stored = self.store.get(parent)
            if parent not in self.model and stored is not None:
                self.model[parent], self.current[parent] = b"", stored.version

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        stored = self.other.get(key)
        assert (stored and (stored.value, stored.version)) == (
            (self.model[key], self.current[key]) if key in self.model else None
        )

    @rule(key=KEYS)
    def list(self, key: str) -> None:
        assert self.store.list(key) == self.children(key)

    @invariant()
    def top(self) -> None:
        if hasattr(self, "store"):
            assert self.other.list("/") == self.children("/")


@pytest.mark.parametrize("kind, examples", [("memory", 60), ("sqlite", 25), ("zookeeper", 20)])
def test_a_store_is_a_dict(kind, examples, request):
    class Machine(StoreMachine):
        url = {"memory": "memory:", "sqlite": "sqlite:"}.get(kind) or request.getfixturevalue("zookeeper_url")

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples, stateful_step_count=25, deadline=None, print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )  # fmt: skip
