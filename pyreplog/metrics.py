"""Numbers for Prometheus. Their owners list them when asked; prometheus_client, the extra `metrics`, serves them.

Nothing is counted per entry: counters move per request or batch, gauges are looked up when somebody scrapes. Names end
in their unit, which is a base unit (seconds, bytes), and counters in `_total`.
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
    """One metric. name: without `_total`. help: one line, what it means. samples: (labels, value) each; of a histogram
    the value is a Histogram."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: list[tuple[Labels, float | Histogram]]


Source = Callable[[], Iterable[Metric]]
"""Lists what there is now; called at each scrape, in any thread."""


def register(source: Source, registry: CollectorRegistry | None = None) -> Callable[[], None]:
    """Have a registry of prometheus_client (default: its global one) ask `source` at each scrape; returns what undoes
    that. MissingExtraError: prometheus_client is not installed."""
    client = _client()
    registry = registry if registry is not None else client.REGISTRY
    collector = _Collector(source, client)
    registry.register(collector)
    return lambda: registry.unregister(collector)


class MetricsServer(Handle):
    """Answers scrapes over HTTP, in threads of its own, until it is closed.

    sources: who is asked. host: loopback unless told otherwise; everybody who reaches it may read. port: 0 for a free
    one. A few connections at a time are answered, for ten seconds each at most; more are closed unheard.
    Errors: MissingExtraError, prometheus_client is not installed; OSError, the address is in use or not ours.
    """

    def __init__(self, sources: Iterable[Source], *, host: str = "127.0.0.1", port: int = 0) -> None:
        client = _client()
        registry = client.CollectorRegistry()
        for source in sources:
            register(source, registry)
        from pyreplog.metrics_http_server import HttpServer  # much that a program without it does not need

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
    """A source, as prometheus_client wants it."""

    def __init__(self, source: Source, client: ModuleType) -> None:
        self._source, self._client = source, client

    def collect(self) -> Iterator[Family]:
        families: dict[str, Metric] = {}
        try:
            metrics = list(self._source())
        except ReplogError as error:  # closed, most likely; the other sources tell theirs
            logger.warning("metrics: %s", error)
            metrics = []
        except Exception as error:
            logger.error("metrics: a source failed: %r", error)
            metrics = []
        for metric in metrics:
            family = families.setdefault(metric.name, metric)
            if family is not metric:  # of another bookie, say: a name may come once
                families[metric.name] = family._replace(samples=family.samples + metric.samples)
        yield from map(self._family, families.values())

    def _family(self, metric: Metric) -> Family:
        core = self._client.core
        names = list(metric.samples[0][0]) if metric.samples else []
        kinds = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        family: Family = kinds.get(metric.kind, core.HistogramMetricFamily)(metric.name, metric.help, labels=names)
        for labels, value in metric.samples:
            told = (value.buckets(), value.total) if isinstance(value, Histogram) else (value,)
            family.add_metric(list(labels.values()), *told)
        return family
