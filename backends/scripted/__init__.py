"""A backend for tests: plays written documents with latencies and faults, on a virtual clock."""

from pasta_async.backends.scripted.backend import Play, ScriptedBackend
from pasta_async.backends.scripted.faults import Fault
from pasta_async.backends.scripted.script import Script, ScriptLike, ScriptSource
from pasta_async.backends.scripted.words import Tokenizer, WordTokenizer
from pasta_async.clock import VirtualClock

__all__ = [
    "Fault",
    "Play",
    "Script",
    "ScriptLike",
    "ScriptSource",
    "ScriptedBackend",
    "Tokenizer",
    "VirtualClock",
    "WordTokenizer",
]
