"""Tools for tests of your own code: a scripted model, faults in it, a random one, a virtual clock."""

from pasta_async.testing.backend import Fault, Play, ScriptedBackend, ScriptLike, ScriptSource
from pasta_async.testing.clock import VirtualClock
from pasta_async.testing.random import RandomBackend
from pasta_async.testing.tokenizer import chat_tokenizer, word_tokenizer

__all__ = [
    "Fault",
    "Play",
    "RandomBackend",
    "ScriptLike",
    "ScriptSource",
    "ScriptedBackend",
    "VirtualClock",
    "chat_tokenizer",
    "word_tokenizer",
]
