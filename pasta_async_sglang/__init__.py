"""A plug-in for SGLang: a fork of a running request reuses the keys and values of its decoded tokens.

SGLang puts the keys and values of decoded tokens into its radix tree when their request ends. With this
plug-in they are there as soon as a fork needs them. A fork's id names its parent (`ID:PARENT`). When the fork
arrives in the scheduler, the parent's keys and values are put into the tree first; then the fork is matched
as always. Tokens that nobody forks from cost nothing.

SGLang's own processes import this package, so it imports the standard library alone, and nothing of
`pasta_async`. It does nothing unless the variable `PASTA_SGLANG_PLUGIN` is 1 (docs/backends.md).
"""

from pasta_async_sglang.plugin import ON, STATE, TESTED, VARIABLE, register

__all__ = ["ON", "STATE", "TESTED", "VARIABLE", "register"]
