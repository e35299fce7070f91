"""How long an engine's steps take: a few constants, fitted on a real one."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pasta_async.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Constant", "EngineModel", "Sample", "fit", "least_squares"]


class Constant(NamedTuple):
    """A constant of the model, in seconds."""

    value: float
    measured: bool
    """Whether a real engine gave it; if not it is assumed, and figures that rest on it say so."""


_NONE = Constant(0.0, False)


class Sample(NamedTuple):
    """What was measured with so many requests at once on contexts of so many tokens."""

    at_once: int
    context: int
    step: float
    """Seconds between two tokens of a request while all of them decode (median)."""
    first_token: float
    """Seconds until a request's first token, nothing of its context cached (median)."""
    decoded: int
    """Tokens that each request then decoded."""

    @property
    def tokens(self) -> int:
        """Tokens of all contexts halfway through."""
        return self.at_once * (self.context + self.decoded // 2)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A step takes step + sequence x requests + context x their tokens + prefill x tokens computed anew.

    A client does its own work besides, one thing after another: `token` for each token that it is given,
    `request` for each request that it makes. Beside an embedded engine that delays the next step, elsewhere
    what the client sees of it.

    Linear, since decoding is bound by memory: the weights are read once for a step, and each request's KV
    besides. What it leaves out: the end of the KV memory, kernels that change with the batch, and prefills
    in batches of their own.
    """

    step: Constant
    """Whatever is decoded: above all, reading the weights."""
    sequence: Constant
    """For each request in the batch."""
    context: Constant
    """For each token of their contexts."""
    prefill: Constant
    """For each token of a prompt that the prefix cache does not have."""
    round_trip: Constant
    """From the client to the engine and back, once for each request."""
    token: Constant = _NONE
    """The client's work for each token."""
    request: Constant = _NONE
    """The client's work for each request."""
    embedded: bool = False
    """Whether engine and client share a process, and a fork finds the KV of threads that still run: `local:`.

    SGLang knows what is decoded only when its request has ended.
    """
    step_tokens: int = 2048
    """Prompt tokens that are computed in one step."""

    def seconds(self, requests: int, tokens: int, prefilled: int) -> float:
        """How long a step takes that decodes so many requests, of so many tokens of context all in all."""
        decoding = self.step.value + self.sequence.value * requests + self.context.value * tokens
        return decoding + self.prefill.value * prefilled

    @property
    def assumed(self) -> list[str]:
        """The constants that were not measured."""
        return [name for name, constant in self.constants().items() if not constant.measured]

    def with_assumed(self, values: dict[str, float]) -> EngineModel:
        """The same with other values, which then count as assumed.

        Raises:
            InvalidRequestError: There is no such constant, or a value is negative.
        """
        known = self.constants()
        for name, value in values.items():
            if name not in known or value < 0:
                raise InvalidRequestError(f"{name}={value}: the constants are {', '.join(known)}, 0 or more")
        return replace(self, **{name: Constant(value, False) for name, value in values.items()})

    def save(self, path: Path) -> None:
        """Write the constants as JSON."""
        constants = {name: constant._asdict() for name, constant in self.constants().items()}
        rows = {**constants, "embedded": self.embedded, "step_tokens": self.step_tokens}
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> EngineModel:
        """Read what `save` wrote.

        Raises:
            InvalidRequestError: The file is something else.
        """
        try:
            rows: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            plain: dict[str, Any] = {n: rows.pop(n) for n in ("embedded", "step_tokens") if n in rows}
            constants: dict[str, Any] = {name: Constant(**row) for name, row in rows.items()}
            return cls(**plain, **constants)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InvalidRequestError(f"{path} holds no engine model: {error}") from error

    def constants(self) -> dict[str, Constant]:
        """All of them by name."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if isinstance(value, Constant)}


def fit(samples: Sequence[Sample]) -> EngineModel:
    """The constants that are nearest to some samples, by least squares of the relative error, none negative.

    Raises:
        InvalidRequestError: The samples do not tell the constants apart: they need two batches, two contexts.
    """
    if len({s.at_once for s in samples}) < 2 or len({s.context for s in samples}) < 2:
        raise InvalidRequestError(
            "a fit needs at least two numbers of requests at once, and two lengths of context"
        )
    rows = [(1.0, float(s.at_once), float(s.tokens)) for s in samples]
    steps = [s.step for s in samples]
    step, sequence, context = least_squares(rows, steps, steps)
    alone = [s for s in samples if s.at_once == min(s.at_once for s in samples)]
    rest = [s.first_token - step for s in alone]
    columns = [(1.0, float(s.at_once * s.context)) for s in alone]
    rest = [max(value, 1e-9) for value in rest]
    round_trip, prefill = least_squares(columns, rest, rest)
    found = [Constant(value, True) for value in (step, sequence, context, prefill, round_trip)]
    return EngineModel(found[0], found[1], found[2], found[3], found[4])


def least_squares(
    rows: Sequence[Sequence[float]], values: Sequence[float], sizes: Sequence[float]
) -> list[float]:
    """Coefficients of the columns, none negative: those that would be are left out, one after another.

    Args:
        rows: For each value what the coefficients are multiplied with.
        values: What the sums should be.
        sizes: Errors count in proportion to these.
    """
    import numpy as np

    weights = 1 / np.array(sizes)
    table, wanted = np.array(rows) * weights[:, None], np.array(values) * weights
    used = [*range(table.shape[1])]
    result = [0.0] * len(used)
    while used:
        found = np.linalg.lstsq(table[:, used], wanted, rcond=None)[0]
        if found.min() >= 0:
            for column, value in zip(used, found, strict=True):
                result[column] = float(value)
            break
        used.remove(used[int(found.argmin())])
    return result
