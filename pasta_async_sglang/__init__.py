"""A plug-in for SGLang: a request that is forked from a running one finds what that one has decoded.

SGLang puts the keys and values that a request decodes into its radix tree when the request ends. With this
plug-in they are there as soon as a fork needs them: the fork's id names its parent (`ID:PARENT`), and when it
arrives in the scheduler, what the parent has decoded is put into the tree; then the fork is matched as
always. Tokens that nobody forks from cost nothing.

SGLang's own processes import this package, so it imports the standard library alone, and nothing of
`pasta_async`. It does nothing unless the variable `PASTA_SGLANG_PLUGIN` is 1 (docs/backends.md).
"""

from pasta_async_sglang.plugin import ON, STATE, TESTED, VARIABLE, register

__all__ = ["ON", "STATE", "TESTED", "VARIABLE", "register"]
