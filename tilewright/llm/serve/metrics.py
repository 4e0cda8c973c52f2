"""Metrics of a server in Prometheus' format, with the suffixes that dashboards for language models expect."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from tilewright.llm.engine import Statistics

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class LatencyHistogram:
    """Seconds in buckets."""

    def __init__(self, bounds: Sequence[float] = _SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """One more value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> list[str]:
        """The text of the histogram."""
        total, lines = 0, [f"# TYPE {name} histogram"]
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            limit = "+Inf" if bound == float("inf") else f"{bound:g}"
            lines.append(f'{name}_bucket{{le="{limit}"}} {total}')
        return [*lines, f"{name}_sum {self._sum:.9g}", f"{name}_count {total}"]


class Metrics:
    """What the server counts besides the engine's figures."""

    def __init__(self) -> None:
        self.first_token = LatencyHistogram()
        self.whole_request = LatencyHistogram()
        self.responses: dict[int, int] = {}  # by HTTP status
        self.rejections = 0

    def values(self, counts: Statistics) -> tuple[dict[str, float], dict[str, float]]:
        """Gauges, and counters that only grow, by name."""
        gauges: dict[str, float] = {
            "num_requests_running": counts.running,
            "num_requests_waiting": counts.waiting,
            "kv_cache_usage_perc": counts.used_pages / max(1, counts.pages),
        }
        counters: dict[str, float] = {
            "num_preemptions_total": counts.preemptions,
            "prompt_tokens_total": counts.prompt_tokens,
            "prompt_tokens_cached_total": counts.cached_tokens,
            "generation_tokens_total": counts.generated_tokens,
            "steps_total": counts.steps,
            "spec_decode_num_drafts_total": counts.drafts,
            "spec_decode_num_draft_tokens_total": counts.drafted_tokens,
            "spec_decode_num_accepted_tokens_total": counts.accepted_tokens,
            "admission_rejections_total": self.rejections,
        }
        return gauges, counters

    def text(self, counts: Statistics) -> str:
        """All metrics in Prometheus' text format."""
        gauges, counters = self.values(counts)
        lines = []
        for kind, values in (("gauge", gauges), ("counter", counters)):
            for name, value in values.items():
                lines += [f"# TYPE tilewright_{name} {kind}", f"tilewright_{name} {value:.9g}"]
        lines.append("# TYPE tilewright_request_success_total counter")
        for reason, number in sorted(counts.finished.items()):
            lines.append(f'tilewright_request_success_total{{finished_reason="{reason}"}} {number}')
        lines.append("# TYPE tilewright_http_responses_total counter")
        for status, number in sorted(self.responses.items()):
            lines.append(f'tilewright_http_responses_total{{status="{status}"}} {number}')
        lines += self.first_token.lines("tilewright_time_to_first_token_seconds")
        lines += self.whole_request.lines("tilewright_e2e_request_latency_seconds")
        return "\n".join(lines) + "\n"
