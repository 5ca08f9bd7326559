"""Metrics for Prometheus. Objects list them at each scrape; prometheus_client, the extra `metrics`, serves them.

No metric has a cost per entry: counters are incremented per request or batch, gauges are read at a scrape. Names end in
their unit, which is a base unit (seconds, bytes), and names of counters in `_total`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple

from pyreplog._native.system.histogram import Histogram
from pyreplog.errors import MissingExtraError, ReplogError
from pyreplog.handles import Handle

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import CollectorRegistry

    Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

logger = logging.getLogger(__name__)

Labels = Mapping[str, str]


class Metric(NamedTuple):
    """One metric.

    name: without `_total`. help: its meaning, one line. samples: (labels, value); the value of a histogram is a
    Histogram.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: list[tuple[Labels, float | Histogram]]


Source = Callable[[], Iterable[Metric]]
"""Returns the metrics of an object now; called at each scrape, in any thread."""


def register(source: Source, registry: CollectorRegistry | None = None) -> Callable[[], None]:
    """Register a source of metrics with a registry of prometheus_client; return a function that unregisters it.

    registry: None: the global registry of prometheus_client.

    Raises MissingExtraError if prometheus_client is not installed.
    """
    client = _client()
    registry = registry if registry is not None else client.REGISTRY
    collector = _Collector(source, client)
    registry.register(collector)
    return lambda: registry.unregister(collector)


class MetricsServer(Handle):
    """Answers scrapes over HTTP, in threads of its own, until it is closed.

    It serves 8 connections at a time, each for 10 seconds at most, and closes further connections at once.

    sources: sources of the metrics. host: address to listen on; every client that reaches it may read the metrics.
    port: 0: a free port.

    Raises MissingExtraError if prometheus_client is not installed, OSError if the address is in use or not one of this
    machine.
    """

    def __init__(self, sources: Iterable[Source], *, host: str = "127.0.0.1", port: int = 0) -> None:
        client = _client()
        registry = client.CollectorRegistry()
        for source in sources:
            register(source, registry)
        from pyreplog.metrics_http_server import HttpServer  # a program without a server need not load its modules

        self._server = HttpServer(host, port, client.make_wsgi_app(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="pyreplog-metrics", daemon=True)
        self._thread.start()
        self.address = self._server.address
        super().__init__(f"metrics server at {self.address[0]}:{self.address[1]}")

    def _do_close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _client() -> ModuleType:
    try:
        import prometheus_client.core
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "prometheus_client":
            raise
        raise MissingExtraError("metrics need prometheus_client: pip install 'pyreplog[metrics]'") from error
    return prometheus_client


class _Collector:
    """A collector of prometheus_client for one source."""

    def __init__(self, source: Source, client: ModuleType) -> None:
        self._source, self._client = source, client

    def collect(self) -> Iterator[Family]:
        families: dict[str, Metric] = {}
        try:
            metrics = list(self._source())
        except ReplogError as error:  # most likely the object was closed; the other sources are still collected
            logger.warning("metrics: %s", error)
            metrics = []
        except Exception as error:
            logger.error("metrics: a source failed: %r", error)
            metrics = []
        for metric in metrics:
            family = families.setdefault(metric.name, metric)
            if family is not metric:  # a registry accepts a name once, and several bookies, for example, share names
                families[metric.name] = family._replace(samples=family.samples + metric.samples)
        yield from map(self._family, families.values())

    def _family(self, metric: Metric) -> Family:
        core = self._client.core
        names = list(metric.samples[0][0]) if metric.samples else []
        kinds = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        family: Family = kinds.get(metric.kind, core.HistogramMetricFamily)(metric.name, metric.help, labels=names)
        for labels, value in metric.samples:
            arguments = (value.buckets(), value.total) if isinstance(value, Histogram) else (value,)
            family.add_metric(list(labels.values()), *arguments)
        return family
