"""Observes a running loader: counters, metrics, callbacks, progress, exporters.

In: counts from decoding, requests and delivered batches. Out: `Metrics`, the frozen value of `loader.metrics()`; calls
of `LoaderCallback`s; a progress bar or log lines; instruments for Prometheus and OpenTelemetry, which read metrics when
the system collects.

Promises: counting is always on and costs some hundred nanoseconds a batch (figures in docs/design/0011-observing.md).
No metric, label or log line contains a value of a row or a credential. Imports the standard library, numpy,
`errors` and `_runtime`; prometheus_client and opentelemetry only when they are used.

Not for: timing single functions, warnings, errors.

A new number goes into `counters.COUNTED` if workers count it, into `metrics.Metrics`, `meter.py` (which fills it in)
and the table of `exporters.py`. A new kind of an old number goes into `counters.KINDS` alone.
"""
