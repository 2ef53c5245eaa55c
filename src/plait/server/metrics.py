"""What /metrics tells, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from plait.engine.events import Result
from plait.server.snapshot import Snapshot

__all__ = ["Metrics", "Watch"]

_FIRST: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_NEXT: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class _Engine(Collector):
    """The engine's own figures, read when they are asked for."""

    def __init__(self, look: Callable[[], Snapshot]) -> None:
        self._look = look

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        found = self._look()
        yield GaugeMetricFamily("plait_queue_requests", "Requests that wait for their turn.", found.queued)
        yield GaugeMetricFamily("plait_running_requests", "Requests the engine works on.", found.running)
        yield CounterMetricFamily("plait_engine_steps", "Steps of the engine.", found.steps)
        held = GaugeMetricFamily("plait_memory_bytes", "Bytes held, by category.", labels=["category"])
        for category, count in found.held.items():
            held.add_metric([category], count)
        yield held
        yield GaugeMetricFamily("plait_cache_bytes", "Bytes that the prefix store alone holds.", found.cache_bytes)
        yield GaugeMetricFamily("plait_cache_budget_bytes", "Bytes it may hold.", found.cache_budget)
        yield CounterMetricFamily("plait_cache_reused_tokens", "Prompt tokens not computed again.", found.reused)
        yield CounterMetricFamily(
            "plait_cache_lost_tokens", "Prompt tokens that were known and computed again.", found.lost
        )


class Metrics:
    """Counts of one server; nothing is shared between servers."""

    def __init__(self, look: Callable[[], Snapshot]) -> None:
        """`look`: the engine's figures now."""
        self._registry = CollectorRegistry()
        self._registry.register(_Engine(look))
        self._requests = Counter(
            "plait_requests", "HTTP requests by path and status.", ["path", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "plait_request_seconds", "Duration of HTTP requests.", ["path"], buckets=_FIRST, registry=self._registry
        )
        self._prompt = Counter("plait_prompt_tokens", "Prompt tokens of answers.", registry=self._registry)
        self._generated = Counter("plait_generated_tokens", "Tokens generated.", registry=self._registry)
        self._first = Histogram(
            "plait_time_to_first_token_seconds",
            "From the arrival of a request to the first token of an answer.",
            buckets=_FIRST,
            registry=self._registry,
        )
        self._next = Histogram(
            "plait_inter_token_seconds", "Between two tokens of an answer.", buckets=_NEXT, registry=self._registry
        )

    def page(self) -> bytes:
        """All of it."""
        return generate_latest(self._registry)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """A request has been answered. `path`: of the route, so that there are few."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def watch(self, arrived: float) -> Watch:
        """For the choices of a request that arrived then (`monotonic`)."""
        return Watch(self, arrived)

    def first(self, seconds: float) -> None:
        self._first.observe(seconds)
        self._generated.inc()

    def next(self, seconds: float) -> None:
        self._next.observe(seconds)
        self._generated.inc()

    def ended(self, result: Result) -> None:
        self._prompt.inc(result.usage.prompt)


@dataclass(slots=True)
class Watch:
    """Times of the tokens of one request."""

    metrics: Metrics
    arrived: float
    _last: dict[int, float] = field(default_factory=dict)

    def token(self, index: int) -> None:
        """Choice `index` has one more."""
        now = monotonic()
        if index in self._last:
            self.metrics.next(now - self._last[index])
        else:
            self.metrics.first(now - self.arrived)
        self._last[index] = now

    def ended(self, result: Result) -> None:
        """A choice is complete."""
        self.metrics.ended(result)
