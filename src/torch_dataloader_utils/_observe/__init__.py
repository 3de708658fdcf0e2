"""Observes a loader while it runs: counters, metrics, callbacks, progress, exporters.

In: counts, made where a row group is decoded, a request sent, a batch delivered. Out: `Metrics`, frozen values for
`loader.metrics()`; calls of `LoaderCallback`s; progress bars or log lines; instruments for Prometheus and OpenTelemetry
that read those values when they are collected.

Promises: counting is always on and costs some hundred nanoseconds a batch (docs/design/0011-observing.md has the
figures); no value of a row and no credential is in a metric, label or log line. Imports the standard library, numpy,
`errors` and `_runtime`; prometheus_client and opentelemetry only when they are used.

Not for: timing single functions, or logging of its own: warnings and errors come from where they are found.

A new figure goes into `counters.COUNTED` where workers count it, `metrics.Metrics` and `meter.py`, which fills it in,
and `exporters.INSTRUMENTS`.
"""
