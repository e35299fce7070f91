"""PASTA-LANG: read, check and write annotated answers, and unroll them into what each thread sees.

Pure: no I/O, no asyncio. docs/language.md describes the language.
"""

from pasta_async.lang import checks, diagnostics, document, parser
from pasta_async.lang.checks import *
from pasta_async.lang.diagnostics import *
from pasta_async.lang.document import *
from pasta_async.lang.lexer import MAX_ESTIMATE
from pasta_async.lang.parser import *
from pasta_async.lang.views import Segment, View, segments, views

__all__ = ["MAX_ESTIMATE", "Segment", "View", "segments", "views"]
__all__ += checks.__all__
__all__ += diagnostics.__all__
__all__ += document.__all__
__all__ += parser.__all__
