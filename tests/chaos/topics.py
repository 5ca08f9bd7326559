"""Three bookies and two servers of topics: one process at a time is disturbed, while one topic is published and consumed."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from pyreplog.errors import ReplogError
from pyreplog.topic.client.remote.client import Client, connect
from tests.chaos.faults import Availability, Outcome, RandomFaults, Worker
from tests.chaos.victims import Victim
from tests.ports import free_ports

PUBLISH_BOUND_S = 30.0
RECEIVE_BOUND_S = 60.0
TIMEOUT_S = 5.0
PAUSE_S = 0.01


class Publisher(Worker):
    """Publishes numbers in order, each until it is acknowledged; its sequence makes repeats no duplicates."""

    def __init__(self, client: Client, availability: Availability) -> None:
        self._client, self._availability = client, availability
        super().__init__()
        self.acknowledged = 0

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                topic = self._client.topic("chaos", deduplicate=True)
                with topic.producer("numbers") as producer:
                    while not self._over.wait(PAUSE_S):
                        number = self.acknowledged
                        producer.publish(b"%d" % number, sequence=number)
                        self.acknowledged = number + 1
                        self._availability.acknowledge()
            except ReplogError as error:
                self.errors[type(error).__name__] += 1
                self._over.wait(0.1)


class Consumer(Worker):
    """Receives and acknowledges; notes every number that came."""

    def __init__(self, client: Client, availability: Availability) -> None:
        self._client, self._availability = client, availability
        super().__init__()
        self.received: dict[int, int] = {}  # how often each came

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                topic = self._client.topic("chaos")
                with topic.subscribe("all", start="earliest") as subscription:
                    while not self._over.is_set():
                        message = subscription.receive(timeout=0.2)
                        if message is None:
                            continue
                        number = int(bytes(message.value))
                        self.received[number] = self.received.get(number, 0) + 1
                        subscription.acknowledge(message)
                        self._availability.acknowledge()
            except ReplogError as error:
                self.errors[type(error).__name__] += 1
                self._over.wait(0.1)


def run(folder: Path, seconds: float, seed: int) -> Outcome:
    """Disturb bookies and servers for so long; wait until everything has come."""
    url = f"sqlite:{folder / 'metadata.sqlite'}"
    ports = free_ports(5)
    victims = [
        Victim(
            f"bookie-{number}", folder,
            ["pyreplog", "bookie", str(folder / f"bookie-{number}"), "--json", "--segment-bytes", str(16 << 20), "--metadata", url, "--listen", f"127.0.0.1:{ports[number]}"],
        )
        for number in range(3)
    ] + [
        Victim(f"server-{number}", folder, ["pyreplog", "serve", url, "--json", "--listen", f"127.0.0.1:{ports[3 + number]}"])
        for number in range(2)
    ]  # fmt: skip
    published, consumed = Availability("publish", PUBLISH_BOUND_S), Availability("receive", RECEIVE_BOUND_S)
    try:
        for victim in victims:
            victim.start()
        servers = f"pyreplog://127.0.0.1:{ports[3]},127.0.0.1:{ports[4]}"
        with connect(servers, timeout=TIMEOUT_S) as client, connect(servers, timeout=TIMEOUT_S) as other:
            publisher, consumer = Publisher(client, published), Consumer(other, consumed)
            faults = RandomFaults(victims, seed)
            publisher.start()
            consumer.start()
            faults.start()
            threading.Event().wait(seconds)
            faults.end()
            held = [published.report(faults), consumed.report(faults)]
            publisher.end()
            deadline = time.monotonic() + RECEIVE_BOUND_S
            while len(consumer.received) < publisher.acknowledged and time.monotonic() < deadline:
                threading.Event().wait(0.1)
            consumer.end()
    finally:
        for victim in victims:
            victim.end()
    missing = set(range(publisher.acknowledged)) - set(consumer.received)
    repeated = sum(count - 1 for count in consumer.received.values())
    print(f"  {publisher.acknowledged:,} acknowledged, {len(missing)} missing, {repeated} received again")
    print(f"  errors: publish {dict(publisher.errors)}, receive {dict(consumer.errors)}")
    return Outcome(publisher.acknowledged, len(missing), all(held))
