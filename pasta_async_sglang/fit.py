"""The parts of SGLang that the plug-in uses, looked up in SGLang's source without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_NEEDED: dict[str, dict[str, tuple[str, ...]]] = {
    "srt/plugins/hook_registry.py": {
        "HookRegistry": ("register(cls, target, hook, hook_type)",),
        "HookType": ("BEFORE", "AFTER"),
    },
    "srt/managers/scheduler.py": {
        "Scheduler": (
            *("handle_generate_request(self, recv_req)", "get_internal_state(self, recv_req)"),
            *("running_batch", "last_batch", "tree_cache"),
            *("spec_algorithm", "disaggregation_mode", "dllm_config", "enable_hisparse"),
        ),
    },
    "srt/managers/schedule_batch.py": {
        "Req": (
            *("refresh_fill_ids(self)", "finished(self)"),
            *("rid", "origin_input_ids", "output_ids", "kv"),
            *("is_retracted", "skip_radix_cache_insert", "session", "beam_group"),
        ),
        "ReqKvInfo": ("holds_kv(self)", "kv_committed_len"),
        "ScheduleBatch": ("reqs",),
    },
    "srt/mem_cache/unified_radix_cache.py": {
        "UnifiedRadixCache": (
            *("checkpoint(self, req, up_to)", "disable", "tree_components"),
            *("cache_controller", "linker", "pp_size"),
        ),
    },
}
"""Of each file, of each class: attributes, and methods with their first parameters."""


def misfits(folder: Path) -> list[str]:
    """The parts that a package `sglang` lacks, or has with other parameters; none if the plug-in fits."""
    return [problem for file, classes in _NEEDED.items() for problem in _in_file(folder / file, classes)]


def _in_file(path: Path, classes: dict[str, tuple[str, ...]]) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, SyntaxError) as error:
        yield f"{path.name} cannot be read ({type(error).__name__})"
        return
    definitions = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for name, needed in classes.items():
        if name not in definitions:
            yield f"{path.name} has no class {name}"
            continue
        members = dict(_members(definitions[name]))
        for signature in needed:
            member, _, parameters = signature.rstrip(")").partition("(")
            if member not in members:
                yield f"{name} has no {member}"
            elif parameters and members[member][: len(parameters.split(", "))] != parameters.split(", "):
                yield f"{name}.{member} takes ({', '.join(members[member])}), not ({parameters})"


def _members(definition: ast.ClassDef) -> Iterator[tuple[str, list[str]]]:
    """The names of a class's attributes and methods, with the methods' parameters."""
    for node in ast.walk(definition):
        targets = node.targets if isinstance(node, ast.Assign) else ()
        for target in [node.target] if isinstance(node, ast.AnnAssign) else targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                if target.value.id == "self":
                    yield target.attr, []
            elif isinstance(target, ast.Name) and node in definition.body:
                yield target.id, []
    for node in definition.body:
        if isinstance(node, ast.FunctionDef):
            given = node.args
            parameters = (*given.posonlyargs, *given.args, *given.kwonlyargs)
            yield node.name, [parameter.arg for parameter in parameters]
