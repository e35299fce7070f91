"""The timeline of a finished answer, as a page of its own."""

from pasta_async.trace.page import timeline_page

__all__ = ["timeline_page"]
