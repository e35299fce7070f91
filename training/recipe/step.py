"""A step of a plan: one command, what it needs, and where its result goes."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["FREE", "Step", "as_flags", "content_digest", "fingerprints"]

FREE = frozenset(
    {
        *(
            "device",
            "attention",
            "recompute",
            "save_every",
            "keep",
            "log_every",
            "track",
            "threads",
            "stop_at",
        ),
        *("ignore_memory", "in_flight", "retries", "timeout", "key_variable", "together"),
    }
)
"""Flags that change how a command works, and nothing of its result but for rounding."""

_SMALL = 1 << 20


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a plan. It goes on from what its folder has, when it is given again."""

    name: str
    module: str
    """Run with `python -m`."""
    flags: Mapping[str, Any]
    output: Path
    """Its folder, which no other step writes into."""
    result: Path
    """What of it others need: there when it is done."""
    needs: tuple[Step, ...] = ()
    reads: tuple[Path, ...] = ()
    """What it reads that no step made."""
    processes: int = 1
    """Above 1 it is run behind torchrun."""
    alone: bool = False
    """Whether it measures time, or takes the whole machine, so that nothing else may run beside it."""
    serving: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """How the models among its flags are served meanwhile (`training.recipe.serving`), if they are."""

    @property
    def arguments(self) -> list[str]:
        """Its flags as a command line has them."""
        return as_flags(self.flags)

    @property
    def command(self) -> list[str]:
        """The whole command."""
        run = ["-m", self.module, *self.arguments]
        if self.processes > 1:
            run = [*_torchrun(self.processes), *run]
        if self.serving:
            run = ["-m", "pasta_async.training.recipe.serving", *as_flags(self.serving), "--", *run[1:]]
        return [sys.executable, *run]

    @property
    def shown(self) -> str:
        """The command as somebody would type it."""
        return shlex.join(["python", *self.command[1:]])

    def same(self) -> list[str]:
        """What has to be equal for the step to go on, as a command line: all but the free flags."""
        return as_flags({name: value for name, value in self.flags.items() if name not in FREE})


def fingerprints(steps: Sequence[Step], out: Path) -> dict[str, str]:
    """By name of each step, what stands for its inputs and settings: another one means another result.

    Args:
        steps: Each behind those that it needs.
        out: The folder of the run, which may be moved.
    """
    found: dict[str, str] = {}
    for step in steps:
        parts = [
            step.module,
            *(one.replace(f"{out}/", "OUT/") for one in step.same()),
            *(found[need.name] for need in step.needs),
            *(content_digest(path) for path in step.reads),
        ]
        found[step.name] = sha256("\0".join(parts).encode()).hexdigest()[:24]
    return found


def as_flags(flags: Mapping[str, Any]) -> list[str]:
    """Flags as a command line has them: `{"lr": 0.1, "recompute": False}` as `--lr 0.1 --no-recompute`."""
    return [word for name, value in flags.items() for word in _flag(name.replace("_", "-"), value)]


def _flag(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield f"--{name}" if value else f"--no-{name}"
        return
    for one in cast("list[Any]", value) if isinstance(value, list) else [value]:
        yield f"--{name}"
        yield json.dumps(one) if isinstance(one, dict) else str(one)


def _torchrun(processes: int) -> Sequence[str]:
    return ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))


def content_digest(path: Path) -> str:
    """Stands for a file or a folder: the content of small files, name and size of large ones."""
    if path.is_dir():
        return "\0".join(content_digest(one) for one in sorted(path.iterdir()) if one.is_file())
    if not path.is_file():
        return f"{path.name} missing"
    size = path.stat().st_size
    content = sha256(path.read_bytes()).hexdigest() if size <= _SMALL else ""
    return f"{path.name} {size} {content}"
