"""A plug-in for SGLang: a fork of a running request reuses the keys and values of its decoded tokens.

SGLang puts the keys and values of decoded tokens into its radix tree when their request ends. With this
plug-in they are there as soon as a fork needs them. A fork's id names its parent (`ID:PARENT`). When the fork
arrives in the scheduler, the parent's keys and values are put into the tree first; then the fork is matched
as always. Tokens that nobody forks from cost nothing.

SGLang's own processes import this package, so it imports the standard library alone, and nothing of
`pasta_async`. It does nothing unless the variable `PASTA_SGLANG_PLUGIN` is 1 (docs/backends.md).
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
from typing import Any

VARIABLE = "PASTA_SGLANG_PLUGIN"
"""The environment variable that switches the plug-in on, where it is 1."""

STATE = "pasta_forks"
"""The field of `/server_info`'s `internal_states` that holds `ON`, or why the plug-in is off."""

ON = "on"

TESTED = ("0.5.23",)
"""Releases of SGLang that the tests ran with; with any other the plug-in is off."""

_SCHEDULER = "sglang.srt.managers.scheduler"

_log = logging.getLogger(__name__)


def register() -> None:
    """Hook into the scheduler, if this is its process: SGLang calls this in each of its own."""
    if os.environ.get(VARIABLE) != "1" or _SCHEDULER not in sys.modules:
        return
    hooks: Any = importlib.import_module("sglang.srt.plugins.hook_registry")
    plugin = Plugin(_unknown(importlib.import_module("sglang")))
    target = f"{_SCHEDULER}.Scheduler."
    hooks.HookRegistry.register(target + "get_internal_state", plugin.tell, hooks.HookType.AFTER)
    if not plugin.off:
        hooks.HookRegistry.register(
            target + "handle_generate_request", plugin.publish_parent, hooks.HookType.BEFORE
        )


def _unknown(sglang: Any) -> str:
    """The reason why this SGLang does not suit the plug-in; empty if it does."""
    release = re.match(r"\d+(?:\.\d+)*", sglang.__version__)
    if release and release[0] in TESTED:
        return ""
    return f"SGLang {sglang.__version__} was not tested with it (but {', '.join(TESTED)})"


class Plugin:
    """The hooks. `off` is the reason why they publish nothing; empty while they work."""

    def __init__(self, off: str) -> None:
        self.off: str = ""
        if off:
            self._switch_off(off)

    def tell(self, reply: Any, scheduler: Any, *_: Any) -> None:
        """After `Scheduler.get_internal_state`: add `STATE` to the reply."""
        try:
            if not self.off and (why := _unsuitable(scheduler)):
                self._switch_off(why)
            reply.internal_state[STATE] = self.off or ON
        except Exception as error:  # the reply is sent without it
            self._switch_off(f"it failed: {error!r}")

    def publish_parent(self, scheduler: Any, request: Any, **_: Any) -> None:
        """Before `Scheduler.handle_generate_request`: publish what the request's parent has decoded."""
        parent = (request.rid or "").partition(":")[2]
        if not parent or self.off:
            return
        try:
            if not _unsuitable(scheduler):
                _publish(scheduler, parent)
        except Exception as error:  # the request is served without it
            self._switch_off(f"it failed: {error!r}")

    def _switch_off(self, why: str) -> None:
        self.off = why
        _log.warning("pasta_async's plug-in is off, forks compute again what was decoded: %s", why)


def _unsuitable(scheduler: Any) -> str:
    """Modes of the server that the plug-in was not made for; empty if there are none."""
    tree = scheduler.tree_cache
    if type(tree).__name__ != "UnifiedRadixCache":
        return f"the prefix cache is a {type(tree).__name__}"
    modes = {
        "no prefix cache": tree.disable,
        "a model with more than full attention": len(tree.tree_components) > 1,
        "a hierarchical cache": tree.cache_controller is not None or tree.linker is not None,
        "pipeline parallelism": tree.pp_size > 1,
        "speculative decoding": not scheduler.spec_algorithm.is_none(),
        "prefill and decode on different servers": scheduler.disaggregation_mode.value != "null",
        "a diffusion model": scheduler.dllm_config is not None,
        "a sparse cache": scheduler.enable_hisparse,
    }
    return ", ".join(mode for mode, used in modes.items() if used)


def _publish(scheduler: Any, rid: str) -> None:
    """Put the keys and values of a running request into the tree; nothing if it is not running here."""
    batches = [batch for batch in (scheduler.running_batch, scheduler.last_batch) if batch is not None]
    running = (request for batch in batches for request in batch.reqs)
    request = next((request for request in running if request.rid == rid), None)
    if request is not None and _publishable(request):
        request.refresh_fill_ids()
        # The token sampled last has no KV yet, and that of a step under way is not written yet.
        decoded = len(request.origin_input_ids) + len(request.output_ids) - 1
        up_to = min(decoded, request.kv.kv_committed_len)
        scheduler.tree_cache.checkpoint(request, up_to=up_to)


def _publishable(request: Any) -> bool:
    return (
        len(request.output_ids) > 0
        and request.kv.holds_kv
        and request.session is None
        and request.beam_group is None
        and not (request.finished() or request.is_retracted or request.skip_radix_cache_insert)
    )
