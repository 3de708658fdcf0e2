"""Observes a loader while it runs: counters, metrics, callbacks, progress, exporters.

In: counts, made where a row group is decoded, a request sent, a batch delivered. Out: `Metrics`, frozen values for
`loader.metrics()`; calls of `LoaderCallback`s; progress bars or log lines; instruments for Prometheus and OpenTelemetry
that read those values when they are collected.

Counting is always on and costs some hundred nanoseconds a batch; docs/design/0011-observing.md has the figures. Imports
the standard library and numpy; rich, prometheus_client and opentelemetry only when they are used. Never sees a row:
values and credentials are in no metric, label or log line.
"""
