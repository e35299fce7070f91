"""What an operator sees of a client's answers: Prometheus metrics, OpenTelemetry traces, structured logs.

    from pasta_async.telemetry.metrics import Metrics

    async with Client("http://127.0.0.1:30000", observers=[Metrics()]) as client:
        ...

Each is an `Observer`, and each has its optional extra: `metrics` for `Metrics`, `otel` for `Tracing`; `Logs`
needs none. Nothing here is imported, and nothing costs anything, before it is used. docs/serving.md has every
name.
"""
