"""What Prometheus reads."""

from __future__ import annotations

from prota.server.metrics import Metrics


def test_the_text_format() -> None:
    metrics = Metrics()
    metrics.describe({"asked_total": "How often."})
    metrics.count("asked_total", by='a "friend"\n\\')
    metrics.count("asked_total", 2, by="z")
    metrics.time("took_seconds", 0.02)
    metrics.time("took_seconds", 100.0)
    metrics.value("there", lambda: 7)
    lines = metrics.text().splitlines()
    assert lines[:4] == [
        "# HELP asked_total How often.",
        "# TYPE asked_total counter",
        r'asked_total{by="a \"friend\"\n\\"} 1',
        'asked_total{by="z"} 2',
    ]
    assert 'took_seconds_bucket{le="0.01"} 0' in lines
    assert 'took_seconds_bucket{le="0.025"} 1' in lines
    assert 'took_seconds_bucket{le="+Inf"} 2' in lines
    assert "took_seconds_sum 100.020000" in lines
    assert "took_seconds_count 2" in lines
    assert lines[-1] == "there 7"
    assert metrics.text().endswith("\n")
