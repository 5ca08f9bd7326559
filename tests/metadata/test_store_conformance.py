"""What every metadata store promises, asked of all three."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pyreplog.errors import (
    InvalidArgumentError,
    KeyExistsError,
    KeyNotEmptyError,
    NoSuchKeyError,
    VersionConflictError,
    WrongTypeError,
)
from pyreplog.metadata import CheckExists, CreateKey, DeleteKey, MetadataStore, PutValue, open_store
from pyreplog.metadata.keys import KEY_MAX, VALUE_MAX
from tests.metadata.processes import COUNTER, Process
from tests.waiting import until


def in_threads(count: int, work: Callable[[int], object]) -> list[object]:
    """What `work(0)` to `work(count - 1)` return when they run at once; an exception counts as a result."""
    results: list[object] = [None] * count
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = work(number)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class Calls:
    """A callback that counts, and what it saw when it looked."""

    def __init__(self, look: Callable[[], object] = lambda: None) -> None:
        self.look, self.count, self.seen = look, 0, None

    def __call__(self, key: str) -> None:
        self.seen = self.look()
        self.count += 1


# ---- values ----------------------------------------------------------------------------------------------------


def test_many_keys_are_read_as_one_is(store, other):
    """More than are asked for at once; in the order of the keys, and with those that are missing."""
    keys = [f"/many/{number:04d}" for number in range(600)]
    for key in keys[::3]:
        other.create(key, key.encode())
    asked = [*reversed(keys), keys[3], "/none"]
    assert store.get_many(asked) == [store.get(key) for key in asked]
    assert store.get_many([]) == []
    for wrong, error in (("many", InvalidArgumentError), (7, WrongTypeError)):
        with pytest.raises(error):
            store.get_many(["/many", wrong])


def test_a_key_from_its_creation_to_its_end(store, other):
    assert store.get("/a") is None
    first = store.create("/a", b"one")
    assert (other.get("/a").value, other.get("/a").version) == (b"one", first)
    second = other.put("/a", b"two", first)
    assert second != first
    assert (store.get("/a").value, store.get("/a").version) == (b"two", second)
    for _ in range(2):
        with pytest.raises(VersionConflictError, match="/a") as conflict:
            store.put("/a", b"three", first)
        assert not conflict.value.retriable, "the same call fails again"
    with pytest.raises(VersionConflictError, match="/a"):
        store.delete("/a", first)
    assert store.get("/a").value == b"two"
    store.delete("/a", second)
    assert other.get("/a") is None
    with pytest.raises(NoSuchKeyError, match="/a"):
        other.delete("/a", second)
    with pytest.raises(NoSuchKeyError, match="/a"):
        other.put("/a", b"", second)
    store.create("/a", b"again")
    assert other.get("/a").value == b"again"


@pytest.mark.parametrize("value", [b"", b"\0", bytes(range(256)), b"\xff" * 1000, bytearray(b"x"), memoryview(b"yz")])
def test_values_are_any_bytes(store, value):
    version = store.create("/a", value)
    assert store.get("/a").value == bytes(value)
    assert store.get("/a").version == version
    store.put("/a", b"other", version)
    store.put("/a", value, store.get("/a").version)
    assert type(store.get("/a").value) is bytes and store.get("/a").value == bytes(value)


def test_the_largest_key_and_value(store):
    key = "/" + "/".join(["k" * 255] * 4)
    assert len(key) == KEY_MAX
    version = store.create(key, bytes(VALUE_MAX))
    assert len(store.get(key).value) == VALUE_MAX
    version = store.put(key, b"\xff" * VALUE_MAX, version)
    for call in (
        lambda: store.create("/a", bytes(VALUE_MAX + 1)),
        lambda: store.put(key, bytes(VALUE_MAX + 1), version),
    ):
        with pytest.raises(InvalidArgumentError, match=str(VALUE_MAX)):
            call()
    assert store.get(key).value == b"\xff" * VALUE_MAX and store.get("/a") is None


KEYS = [
    "", "/", "a", "a/b", "//", "/a/", "//a", "/a//b", "/.", "/a/..", "/a/./b", "/a b", "/a\n", "/\0", "/\x7f", "/ä",
    "/" + "a" * 256, "/a" * 513, "/zookeeper", "/zookeeper/quota",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_malformed_keys_are_refused_by_every_call(store, key):
    calls = [
        lambda: store.get(key), lambda: store.create(key, b""), lambda: store.put(key, b"", 0),
        lambda: store.delete(key, 0), lambda: lease.create(key, b""),
        lambda: store.multi([CreateKey("/a", b""), CheckExists(key)]), lambda: store.multi([CreateKey(key, b"")]),
    ]  # fmt: skip
    if key != "/":
        calls += [lambda: store.list(key), lambda: store.watch(key, print)]
    with store.lease(5) as lease:
        for call in calls:
            with pytest.raises(InvalidArgumentError, match=r"key|ZooKeeper"):
                call()
    assert store.list("/") == []


def test_arguments_of_wrong_types_are_refused(store):
    version = store.create("/a", b"")
    calls = [
        lambda: store.get(b"/a"), lambda: store.list(None), lambda: store.create("/b", "text"),
        lambda: store.create("/b", None), lambda: store.create("/b", 5), lambda: store.put("/a", "text", version),
        lambda: store.put("/a", b"", None), lambda: store.put("/a", b"", True), lambda: store.delete("/a", "0"),
        lambda: store.multi([CreateKey("/b", b""), PutValue("/a", "text", version)]),
        lambda: store.multi([CreateKey("/b", b""), DeleteKey("/a", "0")]),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(WrongTypeError):
            call()
    assert store.list("/") == ["a"]


@pytest.mark.parametrize("version", [-1, -2, 1 << 63])
def test_impossible_versions_are_refused(store, version):
    """-1 is ZooKeeper's "any version"."""
    store.create("/a", b"")
    with pytest.raises(InvalidArgumentError, match="version"):
        store.put("/a", b"x", version)
    with pytest.raises(InvalidArgumentError, match="version"):
        store.delete("/a", version)
    with pytest.raises(VersionConflictError):
        store.put("/a", b"x", (1 << 63) - 1)
    with pytest.raises(VersionConflictError):
        store.multi([DeleteKey("/a", (1 << 63) - 1)])
    assert store.get("/a").value == b""


# ---- several keys ----------------------------------------------------------------------------------------------


def test_operations_are_done_together(store, other):
    versions = {key: store.create(key, b"before") for key in ("/m/put", "/m/deleted", "/m/checked")}
    new = store.multi(
        [
            CheckExists("/m/checked"), CreateKey("/m/new/deep/key", b"new"), PutValue("/m/put", b"after", versions["/m/put"]),
            DeleteKey("/m/deleted", versions["/m/deleted"]),
        ]
    )  # fmt: skip
    assert other.list("/m") == ["checked", "new", "put"] and other.get("/m/new").value == b""
    for key, value, version in (("/m/new/deep/key", b"new", new[1]), ("/m/put", b"after", new[2])):
        assert (other.get(key).value, other.get(key).version) == (value, version)
    assert new[0] is None and new[3] is None and new[2] != versions["/m/put"]
    store.multi([DeleteKey("/m/new/deep/key", new[1]), DeleteKey("/m/put", new[2])])
    assert other.list("/m/new/deep") == [] and store.multi([]) == []


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (CheckExists("/m/none"), NoSuchKeyError),
        (CreateKey("/m/a", b""), KeyExistsError),
        (PutValue("/m/none", b"", 0), NoSuchKeyError),
        (PutValue("/m/a", b"", 77), VersionConflictError),
        (DeleteKey("/m/none", 0), NoSuchKeyError),
        (DeleteKey("/m/a", 77), VersionConflictError),
        (DeleteKey("/m/parent", 0), KeyNotEmptyError),
    ],
)
def test_a_failed_operation_undoes_all_operations_before_it(store, other, failing, error):
    for key in ("/m/a", "/m/put", "/m/deleted", "/m/parent/child"):
        store.create(key, b"before")
    if isinstance(failing, DeleteKey) and error is KeyNotEmptyError:
        failing = failing._replace(version=store.get(failing.key).version)
    keys = ["/m", "/m/a", "/m/put", "/m/deleted", "/m/new", "/m/parent"]
    before = [store.get(key) for key in keys], store.list("/m")
    done = [
        CreateKey("/m/new", b"new"), PutValue("/m/put", b"after", store.get("/m/put").version),
        DeleteKey("/m/deleted", store.get("/m/deleted").version),
    ]  # fmt: skip
    with pytest.raises(error, match=failing.key):
        store.multi([*done, failing, CheckExists("/m/a")])
    assert ([other.get(key) for key in keys], other.list("/m")) == before
    store.multi(done)
    assert other.list("/m") == ["a", "new", "parent", "put"]


def test_values_of_operations_are_bounded_together(store):
    half = bytes(VALUE_MAX // 2)
    store.multi([CreateKey("/a", half), CreateKey("/b", half)])
    with pytest.raises(InvalidArgumentError, match=f"at most {VALUE_MAX} bytes of values, found {VALUE_MAX + 1}"):
        store.multi([CreateKey("/c", half), CreateKey("/d", half + b"x")])
    assert store.list("/") == ["a", "b"]


def test_watches_see_operations(store, other):
    version = store.create("/w/deleted", b"")
    calls = {key: Calls(lambda key=key: (other.get(key), other.list(key))) for key in ("/w", "/w/deleted", "/w/new")}
    watches = [other.watch(key, calls[key]) for key in calls]
    until(lambda: all(each.count for each in calls.values()))
    store.multi([CreateKey("/w/new", b"new"), DeleteKey("/w/deleted", version)])
    for key, each in calls.items():
        true = store.get(key), store.list(key)
        until(lambda each=each, true=true: each.seen == true)
    for watch in watches:
        watch.close()


# ---- the tree --------------------------------------------------------------------------------------------------


def test_children_are_listed_sorted(store, other):
    assert store.list("/") == [] and store.list("/nothing") == []
    for name in ("b", "a", "B", "c:3181", "a.b", "ab", "~", "10", "9", "%2F"):
        store.create(f"/top/{name}", b"")
    store.create("/top/a/below", b"")
    store.create("/topmost", b"")
    assert other.list("/top") == sorted(["b", "a", "B", "c:3181", "a.b", "ab", "~", "10", "9", "%2F"])
    assert other.list("/top/a") == ["below"] and other.list("/top/b") == []
    assert other.list("/") == ["top", "topmost"]


def test_parents_of_a_key_are_keys(store):
    store.create("/a/b/c", b"x")
    assert store.get("/a").value == store.get("/a/b").value == b""
    with pytest.raises(KeyExistsError, match="/a/b"):
        store.create("/a/b", b"")
    with pytest.raises(KeyNotEmptyError, match="/a/b"):
        store.delete("/a/b", store.get("/a/b").version)
    store.put("/a/b", b"y", store.get("/a/b").version)
    store.delete("/a/b/c", store.get("/a/b/c").version)
    assert store.list("/a/b") == [] and store.get("/a/b").value == b"y"
    store.delete("/a/b", store.get("/a/b").version)
    assert store.list("/a") == []


def test_a_key_may_be_deeply_nested(store):
    key = "/x" * (KEY_MAX // 2)
    store.create(key, b"deep")
    assert store.get(key).value == b"deep" and store.list(key[: -len("/x")]) == ["x"]


# ---- races -----------------------------------------------------------------------------------------------------


def test_one_of_many_concurrent_creates_succeeds(store, other):
    results = in_threads(8, lambda n: (store, other)[n % 2].create("/deep/er/key", b"%d" % n))
    winners = [n for n, result in enumerate(results) if isinstance(result, int)]
    assert len(winners) == 1, results
    assert all(isinstance(result, int | KeyExistsError) for result in results), results
    assert store.get("/deep/er/key").value == b"%d" % winners[0]


def test_concurrent_updates_of_threads_are_not_lost(store, other):
    store.create("/counter", b"0")

    def count(number: int) -> None:
        handle, done = (store, other)[number % 2], 0
        while done < 15:
            stored = handle.get("/counter")
            try:
                handle.put("/counter", b"%d" % (int(stored.value) + 1), stored.version)
                done += 1
            except VersionConflictError:
                continue

    assert in_threads(6, count) == [None] * 6
    assert store.get("/counter").value == b"90"


def test_one_of_many_concurrent_deletes_succeeds(store, other):
    for _ in range(5):
        version = store.create("/a", b"")
        results = in_threads(4, lambda n, version=version: (store, other)[n % 2].delete("/a", version))
        assert results.count(None) == 1, results
        assert all(result is None or isinstance(result, NoSuchKeyError) for result in results), results


def test_concurrent_updates_of_processes_are_not_lost(shared_url):
    """They also make the store together."""
    processes = [Process(COUNTER, shared_url, 20) for _ in range(3)]
    try:
        said = [process.popen.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.popen.kill()
    assert [process.popen.returncode for process in processes] == [0, 0, 0]
    assert sorted(said) == ["", "not the first\n", "not the first\n"]
    with open_store(shared_url) as store:
        assert store.get("/counter").value == b"60"


# ---- watches ---------------------------------------------------------------------------------------------------


def test_a_watch_calls_at_once(store):
    calls = Calls()
    with store.watch("/nothing", calls):
        until(lambda: calls.count)


@pytest.mark.parametrize("change", ["create", "put", "delete", "first child", "child", "child deleted"])
def test_watch_callback_sees_the_state_after_the_change(store, other, change):
    """`look` is what a caller would read in the callback: it must come to what is true after the change."""
    if change != "create" and change != "first child":
        version = store.create("/w/key", b"before")
        child = store.create("/w/key/child", b"") if change == "child deleted" else 0
    calls = Calls(lambda: (other.get("/w/key"), other.list("/w/key")))
    with other.watch("/w/key", calls):
        until(lambda: calls.count)
        match change:
            case "create":
                store.create("/w/key", b"")
            case "put":
                store.put("/w/key", b"after", version)
            case "delete":
                store.delete("/w/key", version)
            case "child deleted":
                store.delete("/w/key/child", child)
            case _:
                store.create("/w/key/another", b"")
        true = (store.get("/w/key"), store.list("/w/key"))
        until(lambda: calls.seen == true)


def test_a_watch_of_the_root(store, other):
    calls = Calls(lambda: other.list("/"))
    with other.watch("/", calls):
        store.create("/a/b", b"")
        until(lambda: calls.seen == ["a"])
        store.create("/c", b"")
        until(lambda: calls.seen == ["a", "c"])


def test_a_watch_misses_no_end(store, other):
    """Many changes, of two keys and their children: each callback comes to see the last one."""
    keys = ["/w/a", "/w/b"]
    calls = {key: Calls(lambda key=key: (other.get(key).value, other.list(key))) for key in keys}
    versions = {key: store.create(key, b"0") for key in keys}
    watches = [other.watch(key, calls[key]) for key in keys]
    for number in range(60):
        key = keys[number % 2]
        versions[key] = store.put(key, b"%d" % number, versions[key])
        if number % 5 == 0:
            store.create(f"{key}/{number:02d}", b"")
    for key in keys:
        until(lambda key=key: calls[key].seen == (store.get(key).value, store.list(key)))
    for watch in watches:
        watch.close()


def test_many_watches_of_one_key(store, other):
    calls = [Calls(lambda: other.get("/a")) for _ in range(3)]
    watches = [other.watch("/a", call) for call in calls]
    store.create("/a", b"")
    until(lambda: all(call.seen for call in calls))
    watches[0].close()
    watches[0].close()
    store.put("/a", b"x", store.get("/a").version)
    until(lambda: all(call.seen.value == b"x" for call in calls[1:]))
    heard = calls[0].count  # a call that was under way when it was closed is over: one thread makes them all
    store.put("/a", b"y", store.get("/a").version)
    until(lambda: all(call.seen.value == b"y" for call in calls[1:]))
    assert calls[0].count == heard


def test_a_watch_closed_and_begun_again(store, other):
    for number in range(3):
        calls = Calls(lambda: other.get("/a"))
        with other.watch("/a", calls):
            until(lambda calls=calls: calls.count)
            if number == 0:
                store.create("/a", b"0")
            else:
                store.put("/a", b"%d" % number, store.get("/a").version)
            until(lambda calls=calls, number=number: calls.seen and calls.seen.value == b"%d" % number)


def test_a_callback_may_use_the_store_and_fail(store, other, caplog):
    def follow(key: str) -> None:
        if (stored := other.get(key)) is None:
            raise ValueError("not yet")
        if other.get("/copy") is None:
            other.create("/copy", stored.value)
        watch.close()

    watch = other.watch("/a", follow)
    until(lambda: "not yet" in caplog.text)
    store.create("/a", b"to be copied")
    until(lambda: store.get("/copy"))
    assert store.get("/copy").value == b"to be copied"


def test_a_callback_may_close_the_store(url):
    closed = threading.Event()
    store: MetadataStore = open_store(url)
    store.watch("/a", lambda key: (store.close(), closed.set()))
    assert closed.wait(60)
