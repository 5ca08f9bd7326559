"""LedgerTopics: the topics on ledgers that a Kafka listener serves beside the partitions of its broker."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pyreplog.errors import ClosedError, NoSuchTopicError, ReplogError, WrongTypeError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.handles import Handle
from pyreplog.kafka.apis.topic_names import is_topic_name
from pyreplog.kafka.groups.topic_catalog import KnownTopic
from pyreplog.kafka.ledgers.partition import AnyTopic, FoundOffset, LedgerPartition, code_of
from pyreplog.kafka.ledgers.requests import LedgerFetchData, LedgerOffset, LedgerPosition
from pyreplog.net.sockets import weak_callback
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import ConsumerFetch, FetchParams, PartitionProduceResponse, ProduceResponses
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.topic.client.remote.client import Client
from pyreplog.topic.client.remote.remote_topic import RemotePartitionedTopic
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.routing import partition_name, partition_of
from pyreplog.topic.owner.partitioned_topic import PartitionedTopic
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.owner.topics import Topics
from pyreplog.topic_names import NAME_BYTES_MAX

logger = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 8
"""Threads for calls of the topics that block: opening, and questions to servers and the metadata store."""

PENDING_BYTES_MAX = 64 << 20
"""Bytes of produced batches without an outcome above which more of them are refused."""

READ_BYTES_MAX = 4 << 20
"""Maximum bytes of one read of a partition."""

PARTITIONS_MAX = 4096
"""Maximum number of open partitions, unless more of them are in use."""

MEASURED_MAX = 16
"""Topics, open at topic servers, of which this process gets handles at a time to measure the lag of groups."""

IDLE_S = 300.0
"""Seconds without use after which a partition is forgotten."""

_SWEEP_S = 30.0
_REFRESH_S = 5.0
"""Seconds after which a topic that is asked for is looked up again, in the background."""
_UNKNOWN_MAX = 1024
_CLOSE_S = 10.0


async def _without_time(offset: int) -> FoundOffset:
    return FoundOffset(offset, -1)


def _full_names(name: TopicPartition) -> list[str]:
    """Return the names that the topic of a partition may have: those that are no name of a topic are left out."""
    part = partition_name(*name)
    names = [part] if name.partition else [part, name.topic]
    return [each for each in names if len(each) <= NAME_BYTES_MAX and is_topic_name(each)]


def _opened_topic(source: Topics, name: TopicPartition) -> Topic | None:
    topics = (source.get(full_name) for full_name in _full_names(name))
    return next((topic for topic in topics if topic is not None and not topic.is_closing), None)


async def _note_local(
    positions: dict[TopicPartition, LedgerPosition], name: TopicPartition, topic: Topic, offset: int
) -> None:  # fmt: skip
    offsets = topic.offsets()
    batch = await topic.read_at(max(offset, offsets.start), bytes_max=1)
    positions[name] = LedgerPosition(offsets, None if batch is None else int(batch.publish_time[0]))


async def _note_stored(
    positions: dict[TopicPartition, LedgerPosition], source: Topics, names: Iterable[TopicPartition]
) -> None:  # fmt: skip
    wanted = {full_name: name for name in names for full_name in _full_names(name)}
    stored = await asyncio.to_thread(source.stored_offsets, list(wanted))
    for full_name, offsets in stored.items():
        positions[wanted[full_name]] = LedgerPosition(offsets, None)


async def _note_own(
    positions: dict[TopicPartition, LedgerPosition], source: Topics, offsets: Mapping[TopicPartition, int]
) -> None:  # fmt: skip
    """Note the places in topics of this process: of those that it does not have open as the metadata store has them."""
    reads: list[Awaitable[None]] = []
    closed: list[TopicPartition] = []
    for name, offset in offsets.items():
        if (topic := _opened_topic(source, name)) is not None:
            reads.append(_note_local(positions, name, topic, offset))
        else:
            closed.append(name)
    if closed:
        reads.append(_note_stored(positions, source, closed))
    await asyncio.gather(*reads, return_exceptions=True)  # unknown: it was deleted, or nobody answers


class GrowthWatch:
    """A wait for messages in topics on ledgers, made by `LedgerTopics.watch`.

    Args:
        loop: the event loop in which it waits.
        wait: completes `grown` when there are messages.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loop, self._wait = loop, wait
        self._task: asyncio.Task[None] | None = None
        self.grown = AppendFuture[None]()
        """Done when one of the partitions has more messages; not done otherwise."""

    def start(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Begin to wait, in the event loop. The task is in `tasks` while it goes on."""
        self._task = self._loop.create_task(self._wait())
        tasks.add(self._task)
        self._task.add_done_callback(tasks.discard)

    def end(self) -> None:
        """End the wait. Any thread may call it."""
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class LedgerTopics(Handle):
    """Topics on ledgers for Kafka clients. Any thread may use it; no method blocks but `close`.

    An event loop in a thread of its own waits for the topics. The cluster or client stays open, and so do the topics
    that it opened.

    Args:
        source: `Cluster.topics`, or a client of topic servers.
        producer_prefix: how the names of idempotent producers begin in the topics. Producer ids are unique behind it.

    Raises:
        WrongTypeError: `source` is something else.
    """

    def __init__(self, source: Topics | Client, producer_prefix: str) -> None:
        if not isinstance(source, Topics | Client):
            raise WrongTypeError(
                f"topics: expected Cluster.topics, or a client of topic servers, found {type(source).__name__}"
            )
        self._source, self._producer_prefix = source, producer_prefix
        self._known: dict[str, KnownTopic] = {}  # the topics as they were found last
        self._names: dict[bytes, str] = {}  # their names, by topic id
        self._looked_up_at: OrderedDict[str, float] = OrderedDict()  # of names, also of those without a topic
        self._listed_at = 0.0  # when all topics were looked up for `known_names`
        self._looking: dict[str, asyncio.Task[KnownTopic | None]] = {}
        self._partitions: OrderedDict[TopicPartition, LedgerPartition] = OrderedDict()  # the last one was used last
        self._lock = threading.Lock()  # guards the number of bytes
        self._pending_bytes = 0  # of produced batches without an outcome
        self._measured = 0  # topics that are being opened for `positions`
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="pyreplog-kafka-topics"))
        self._thread = threading.Thread(target=self._loop.run_forever, name="pyreplog-kafka-topics", daemon=True)
        super().__init__("topics on ledgers for Kafka clients")
        self._thread.start()
        self._loop.call_soon_threadsafe(weak_callback(self._sweep))

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> AppendFuture[T]:
        """Run a coroutine in the event loop, in the order of the calls. Returns a future of its result."""
        future = AppendFuture[T]()

        async def run() -> None:
            try:
                set_result(future, await call())
            except asyncio.CancelledError:
                set_exception(future, ClosedError("the Kafka listener was closed"))
                raise
            except Exception as error:
                set_exception(future, error)

        def start() -> None:
            task = self._loop.create_task(run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        try:
            self._check_open()
            self._loop.call_soon_threadsafe(start)
        except (ReplogError, RuntimeError):
            set_exception(future, ClosedError("the Kafka listener was closed"))
        return future

    # ---- topics ---------------------------------------------------------------------------------------------

    def find(self, names: Iterable[str]) -> AppendFuture[dict[str, KnownTopic]]:
        """Look topics up.

        Args:
            names: names of topics; those that are no names of Kafka topics are left out.

        Returns:
            A future of the topics that exist, by name. It fails if that is not known now.
        """
        return self._run(partial(self._find, [name for name in dict.fromkeys(names) if is_topic_name(name)]))

    def find_all(self) -> AppendFuture[dict[str, KnownTopic]]:
        """Look up all topics that have names of Kafka topics.

        Returns:
            As `find`.
        """
        return self._run(self._find_all)

    def known(self, name: str) -> KnownTopic | None:
        """Return a topic as it was looked up last; None: it did not exist, or was not looked up yet.

        It is looked up again in the background, so that a caller that asks again learns of changes.

        Args:
            name: name of the topic.
        """
        is_due = self._loop.time() >= self._looked_up_at.get(name, 0.0) + _REFRESH_S
        if is_due and name not in self._looking and is_topic_name(name):
            self._run(partial(self._find, [name]))
        return self._known.get(name)

    def known_names(self) -> Collection[str]:
        """Return the names of the topics that were found. All are looked up in the background, as `known` does."""
        now = self._loop.time()
        if now >= self._listed_at + _REFRESH_S:
            self._listed_at = now
            self._run(self._find_all)
        return list(self._known)

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id of 16 bytes; None: no topic with it was found.

        Args:
            topic_id: the id.
        """
        return self._names.get(topic_id)

    async def _find(self, names: Collection[str]) -> dict[str, KnownTopic]:
        found = await asyncio.gather(*(self._look_up(name) for name in names))
        return {name: topic for name, topic in zip(names, found, strict=True) if topic is not None}

    async def _look_up(self, name: str) -> KnownTopic | None:
        """Look a topic up, once for all callers that wait for it."""
        task = self._looking.get(name)
        if task is None:
            task = self._looking[name] = self._loop.create_task(self._identify(name))
            task.add_done_callback(lambda _: self._looking.pop(name))
        return await asyncio.shield(task)

    async def _identify(self, name: str) -> KnownTopic | None:
        try:
            identity = await asyncio.to_thread(self._source.identity_of, name)
        finally:
            self._note_look_up(name)
        former = self._known.get(name)
        if identity is None:
            self._forget(name)
            return None
        topic_id = hashlib.blake2b(f"{identity.token}\0{name}".encode(), digest_size=16).digest()
        topic = KnownTopic(topic_id, 1 if identity.partitions is None else identity.partitions)
        if former is not None and former.topic_id != topic_id:
            self._forget(name)
        self._known[name], self._names[topic_id] = topic, name
        return topic

    def _note_look_up(self, name: str) -> None:
        """Note when a topic was looked up, also without a result: `known` does not ask again at once."""
        self._looked_up_at[name] = self._loop.time()
        self._looked_up_at.move_to_end(name)
        while len(self._looked_up_at) > len(self._known) + _UNKNOWN_MAX:
            self._looked_up_at.popitem(last=False)

    def _forget(self, name: str) -> None:
        """Forget a topic that does not exist any more, or not with this id."""
        former = self._known.pop(name, None)
        if former is not None:
            self._names.pop(former.topic_id, None)
            for partition in [partition for partition in self._partitions if partition.topic == name]:
                self._close_partition(partition)

    async def _find_all(self) -> dict[str, KnownTopic]:
        stored, partitioned = await asyncio.gather(
            asyncio.to_thread(self._list_names), asyncio.to_thread(self._list_partitioned)
        )
        grouped = set(partitioned)
        names = {name for name in stored if (part := partition_of(name)) is None or part[0] not in grouped} | grouped
        wanted = sorted(name for name in names if is_topic_name(name))
        for name in self._known.keys() - names:
            self._forget(name)
        await self._find([name for name in wanted if name in grouped or name not in self._known])
        return {name: self._known[name] for name in wanted if name in self._known}

    def _list_names(self) -> list[str]:
        return self._source.topics() if isinstance(self._source, Client) else self._source.names()

    def _list_partitioned(self) -> list[str]:
        if isinstance(self._source, Client):
            return self._source.partitioned_topics()
        return self._source.partitioned.names()

    def config(self, name: str) -> AppendFuture[TopicConfig]:
        """Look up the settings of a topic.

        Args:
            name: name of the topic.

        Returns:
            A future of the settings. It fails with the errors of `Cluster.topic`.
        """

        async def find() -> TopicConfig:
            return await self._partition(TopicPartition(name, 0)).config()

        return self._run(find)

    # ---- partitions -----------------------------------------------------------------------------------------

    def _partition(self, name: TopicPartition) -> LedgerPartition:
        partition = self._partitions.get(name)
        if partition is None:
            label = f"{name.topic}, partition {name.partition}"
            partition = LedgerPartition(label, partial(self._open, name), self._producer_prefix)
            self._partitions[name] = partition
            if len(self._partitions) > PARTITIONS_MAX:
                other = next((other for other, each in self._partitions.items() if not each.is_busy), None)
                if other is not None:
                    self._close_partition(other)
        self._partitions.move_to_end(name)
        return partition

    def _open(self, name: TopicPartition) -> AnyTopic:
        """Open the topic that is a partition. Blocks."""
        if not is_topic_name(name.topic):
            raise NoSuchTopicError(name.topic, "it is not a name of a Kafka topic")
        topic = self._source.existing(name.topic)
        if isinstance(topic, PartitionedTopic | RemotePartitionedTopic):
            if not 0 <= name.partition < topic.partitions:
                raise NoSuchTopicError(
                    name.topic, f"it has {topic.partitions} partitions, there is no {name.partition}"
                )
            return topic.partition(name.partition)
        if name.partition:
            raise NoSuchTopicError(name.topic, f"expected partition 0, its only one, found {name.partition}")
        return topic

    def _close_partition(self, name: TopicPartition) -> None:
        task = self._loop.create_task(self._partitions.pop(name).close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _sweep(self) -> None:
        """Forget the partitions that were not used for long."""
        before = self._loop.time() - IDLE_S
        for name in [name for name, each in self._partitions.items() if each.used_at < before and not each.is_busy]:
            self._close_partition(name)
        self._loop.call_later(_SWEEP_S, weak_callback(self._sweep))

    # ---- publishing -----------------------------------------------------------------------------------------

    @property
    def is_congested(self) -> bool:
        """Whether so many bytes have no outcome yet that producers which wait for none should be slowed down."""
        return self._pending_bytes > PENDING_BYTES_MAX // 2

    def append_records(
        self, records: Mapping[TopicPartition, bytes], *, timeout_ms: int
    ) -> AppendFuture[ProduceResponses]:
        """Publish record batches, those of each partition in the order of the calls.

        Args:
            records: one record batch for each partition.
            timeout_ms: milliseconds after which a batch without an outcome is answered.

        Returns:
            A future of the outcomes. A batch is acknowledged when its topic acknowledges it. The future fails only when
            the listener is closed, with a ClosedError.
        """
        size = sum(map(len, records.values()))
        with self._lock:
            pending = self._pending_bytes
            is_accepted = not pending or pending + size <= PENDING_BYTES_MAX
            if is_accepted:
                self._pending_bytes += size
        if is_accepted:
            return self._run(partial(self._append_all, records, size, timeout_ms / 1000))
        refused = AppendFuture[ProduceResponses]()
        message = f"{pending} bytes have no outcome yet: try again later"
        refusal = PartitionProduceResponse(ErrorCode.NOT_ENOUGH_REPLICAS, message=message)
        set_result(refused, dict.fromkeys(records, refusal))
        return refused

    async def _append_all(
        self, records: Mapping[TopicPartition, bytes], size: int, timeout_s: float
    ) -> ProduceResponses:  # fmt: skip
        try:
            responses = await asyncio.gather(
                *(self._partition(name).append(data, timeout_s) for name, data in records.items())
            )
        finally:
            with self._lock:
                self._pending_bytes -= size
        return dict(zip(records, responses, strict=True))

    # ---- reading --------------------------------------------------------------------------------------------

    def fetch(
        self, params: FetchParams, fetches: Mapping[TopicPartition, ConsumerFetch]
    ) -> AppendFuture[dict[TopicPartition, LedgerFetchData]]:  # fmt: skip
        """Fetch for a consumer: wait up to `max_wait_ms` for `min_bytes`.

        Args:
            params: settings of the fetch.
            fetches: the partitions.

        Returns:
            A future of the outcomes. It fails only when the listener is closed, with a ClosedError.
        """
        return self._run(partial(self._fetch, params, fetches))

    async def _fetch(
        self, params: FetchParams, fetches: Mapping[TopicPartition, ConsumerFetch]
    ) -> dict[TopicPartition, LedgerFetchData]:  # fmt: skip
        deadline = self._loop.time() + params.max_wait_ms / 1000
        while True:
            responses = await self._read(params, fetches)
            size = sum(len(data.records) for data in responses.values())
            has_error = any(data.code is not ErrorCode.NONE for data in responses.values())
            if size >= params.min_bytes or has_error or self._loop.time() >= deadline:
                return responses
            if not await self._wait_for_growth(responses, deadline):
                return responses

    def watch(self, ends: Mapping[TopicPartition, int], timeout_ms: int) -> GrowthWatch:
        """Wait for messages behind those that a caller has read.

        Args:
            ends: the high watermarks that it has read, by partition.
            timeout_ms: milliseconds after which the wait ends.

        Returns:
            The wait. It is not told of a partition that cannot be watched.
        """

        async def wait_beyond(name: TopicPartition, end: int) -> None:
            with suppress(Exception):  # a read of the partition returns the error
                await self._partition(name).wait_beyond(end)
                set_result(watch.grown)

        async def wait() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await asyncio.gather(*(wait_beyond(*each) for each in ends.items()))

        watch = GrowthWatch(self._loop, wait)
        with suppress(ReplogError, RuntimeError):  # it was closed
            self._check_open()
            self._loop.call_soon_threadsafe(watch.start, self._tasks)
        return watch

    async def _read(
        self, params: FetchParams, fetches: Mapping[TopicPartition, ConsumerFetch]
    ) -> dict[TopicPartition, LedgerFetchData]:  # fmt: skip
        """Read all partitions, up to the size of the response; the first batch is returned whatever its size."""
        found = await asyncio.gather(*(self._bounds(name, fetch) for name, fetch in fetches.items()))
        responses, left, is_first = dict(zip(fetches, found, strict=True)), params.max_bytes, True
        for name, fetch in fetches.items():
            data = responses[name]
            if data.code is not ErrorCode.NONE or fetch.offset >= data.high_watermark or (left <= 0 and not is_first):
                continue
            try:
                max_bytes = min(fetch.max_bytes, left, READ_BYTES_MAX)
                records = await self._partition(name).read(fetch.offset, max_bytes)
            except Exception as error:
                responses[name] = LedgerFetchData(self._code_of(name, error))
                continue
            if is_first or len(records) <= left:
                responses[name] = data._replace(records=records)
                left, is_first = left - len(records), is_first and not records
        return responses

    async def _bounds(self, name: TopicPartition, fetch: ConsumerFetch) -> LedgerFetchData:
        try:
            offsets = await self._partition(name).offsets()
        except Exception as error:
            return LedgerFetchData(self._code_of(name, error))
        is_inside = offsets.start <= fetch.offset <= offsets.stop
        code = ErrorCode.NONE if is_inside else ErrorCode.OFFSET_OUT_OF_RANGE
        return LedgerFetchData(code, offsets.stop, offsets.start)

    async def _wait_for_growth(self, responses: Mapping[TopicPartition, LedgerFetchData], deadline: float) -> bool:
        """Wait until a partition has more messages, or until a deadline; return whether to read again."""
        waits = [
            self._loop.create_task(self._partition(name).wait_beyond(data.high_watermark))
            for name, data in responses.items()
        ]
        if not waits:
            return False
        try:
            done, _ = await asyncio.wait(
                waits, timeout=max(deadline - self._loop.time(), 0.0), return_when=asyncio.FIRST_COMPLETED
            )
            errors = [wait.exception() for wait in done]  # of all: asyncio logs those that nobody looks at
            return None in errors
        finally:
            for wait in waits:
                wait.cancel()

    def _code_of(self, name: TopicPartition, error: Exception) -> ErrorCode:
        code = code_of(error)
        if code is ErrorCode.UNKNOWN_SERVER_ERROR:
            logger.error("topic %s, partition %d: a fetch failed", *name, exc_info=error)
        return code

    # ---- offsets --------------------------------------------------------------------------------------------

    def start_offset(self, name: TopicPartition) -> AppendFuture[LedgerOffset]:
        """Return a future of the offset of the first message that is kept.

        Args:
            name: the partition.
        """
        return self._search(name, lambda _, offsets: _without_time(offsets.start))

    def end_offset(self, name: TopicPartition) -> AppendFuture[LedgerOffset]:
        """Return a future of the offset behind the last message.

        Args:
            name: the partition.
        """
        return self._search(name, lambda _, offsets: _without_time(offsets.stop))

    def offset_at(self, name: TopicPartition, time_ms: int) -> AppendFuture[LedgerOffset]:
        """Return a future of the first message whose timestamp is not below a time; see `LedgerPartition.find_time`.

        Args:
            name: the partition.
            time_ms: milliseconds since 1970.
        """
        return self._search(name, lambda partition, offsets: partition.find_time(time_ms, offsets.stop))

    def offset_of_max_time(self, name: TopicPartition) -> AppendFuture[LedgerOffset]:
        """Return a future of the message with the maximum timestamp; see `LedgerPartition.find_max_time`.

        Args:
            name: the partition.
        """
        return self._search(name, lambda partition, offsets: partition.find_max_time(offsets))

    def positions(
        self, offsets: Mapping[TopicPartition, int], timeout_s: float
    ) -> AppendFuture[dict[TopicPartition, LedgerPosition]]:  # fmt: skip
        """Return a future of the places of a group in partitions.

        No topic is opened for it, because a topic that is open stays so: the bounds of others are those in the metadata
        store.

        Args:
            offsets: the offsets that the group has committed.
            timeout_s: seconds after which the places that are known are returned.

        Returns:
            The future; it does not fail. Places that are not known for now are left out.
        """
        return self._run(partial(self._positions, offsets, timeout_s))

    async def _positions(
        self, offsets: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, LedgerPosition]:  # fmt: skip
        source, positions = self._source, dict[TopicPartition, LedgerPosition]()
        if isinstance(source, Client):
            noted = self._note_served(positions, source, offsets)
        else:
            noted = _note_own(positions, source, offsets)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(noted, return_exceptions=True)  # nobody answers
        return positions

    async def _note_served(
        self, positions: dict[TopicPartition, LedgerPosition], source: Client, offsets: Mapping[TopicPartition, int]
    ) -> None:  # fmt: skip
        """Note the places in topics of topic servers, of which those that no server has open stay so."""
        wanted = {full_name: name for name in offsets for full_name in _full_names(name)}
        closed = await source.closed_offsets_async(list(wanted))
        for full_name, kept in closed.items():
            if kept is not None:
                positions[wanted[full_name]] = LedgerPosition(kept, None)
        unopened = {wanted[full_name] for full_name in closed}
        reads = (self._note_remote(positions, *each) for each in offsets.items() if each[0] not in unopened)
        await asyncio.gather(*reads, return_exceptions=True)  # unknown: it was deleted, or its owner does not answer

    async def _note_remote(
        self, positions: dict[TopicPartition, LedgerPosition], name: TopicPartition, offset: int
    ) -> None:  # fmt: skip
        partition = self._partition(name)
        is_new = not partition.is_open
        if is_new and self._measured >= MEASURED_MAX:
            return
        self._measured += is_new
        try:
            offsets = await partition.offsets()
        finally:
            self._measured -= is_new
        positions[name] = LedgerPosition(offsets, await partition.published_us(max(offset, offsets.start)))

    def _search(
        self, name: TopicPartition, find: Callable[[LedgerPartition, range], Awaitable[FoundOffset | None]]
    ) -> AppendFuture[LedgerOffset]:  # fmt: skip
        async def search() -> LedgerOffset:
            try:
                partition = self._partition(name)
                found = await find(partition, await partition.offsets())
                return LedgerOffset(ErrorCode.NONE, *(found or ()))
            except Exception as error:
                return LedgerOffset(self._code_of(name, error))

        return self._run(search)

    # ---- the end --------------------------------------------------------------------------------------------

    def _do_close(self) -> None:
        closed = AppendFuture[None]()

        async def end() -> None:
            try:
                tasks = [*self._tasks, *self._looking.values()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for partition in list(self._partitions.values()):  # `_sweep` may remove some meanwhile
                    await partition.close()
                rest = asyncio.all_tasks() - {asyncio.current_task()}  # of partitions that were closed before
                await asyncio.gather(*rest, return_exceptions=True)
            finally:
                set_result(closed, None)

        def begin() -> None:
            self._ending = self._loop.create_task(end())

        self._loop.call_soon_threadsafe(begin)
        try:
            closed.result(_CLOSE_S)
        except ReplogError:
            logger.warning("topics on ledgers for Kafka clients: calls of the topics go on after %g s", _CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
