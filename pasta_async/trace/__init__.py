"""The timeline of a finished answer, as a trace for Perfetto and as a page of its own."""

from pasta_async.trace.page import timeline_page
from pasta_async.trace.perfetto import perfetto_trace

__all__ = ["perfetto_trace", "timeline_page"]
