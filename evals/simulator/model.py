"""How long an engine's steps take: a few constants, fitted on a real one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pasta_async.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Constant", "EngineModel", "Sample", "fit"]


class Constant(NamedTuple):
    """A constant of the model, in seconds."""

    value: float
    measured: bool
    """Whether a real engine gave it; if not it is assumed, and figures that rest on it say so."""


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

    def seconds(self, requests: int, tokens: int, prefilled: int) -> float:
        """How long a step takes that decodes so many requests, of so many tokens of context all in all."""
        decoding = self.step.value + self.sequence.value * requests + self.context.value * tokens
        return decoding + self.prefill.value * prefilled

    @property
    def assumed(self) -> list[str]:
        """The constants that were not measured."""
        return [name for name, constant in self._constants().items() if not constant.measured]

    def with_assumed(self, values: dict[str, float]) -> EngineModel:
        """The same with other values, which then count as assumed.

        Raises:
            InvalidRequest: There is no such constant, or a value is negative.
        """
        known = self._constants()
        for name, value in values.items():
            if name not in known or value < 0:
                raise InvalidRequest(f"{name}={value}: the constants are {', '.join(known)}, 0 or more")
        return EngineModel(**(known | {name: Constant(value, False) for name, value in values.items()}))

    def save(self, path: Path) -> None:
        """Write the constants as JSON."""
        rows = {name: constant._asdict() for name, constant in self._constants().items()}
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> EngineModel:
        """Read what `save` wrote.

        Raises:
            InvalidRequest: The file is something else.
        """
        try:
            rows: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{name: Constant(**row) for name, row in rows.items()})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InvalidRequest(f"{path} holds no engine model: {error}") from error

    def _constants(self) -> dict[str, Constant]:
        return {name: Constant(*value) for name, value in asdict(self).items()}


def fit(samples: Sequence[Sample]) -> EngineModel:
    """The constants that are nearest to some samples, by least squares of the relative error, none negative.

    Raises:
        InvalidRequest: The samples do not tell the constants apart: they need two batches and two contexts.
    """
    if len({s.at_once for s in samples}) < 2 or len({s.context for s in samples}) < 2:
        raise InvalidRequest(
            "a fit needs at least two numbers of requests at once, and two lengths of context"
        )
    rows = [(1.0, float(s.at_once), float(s.tokens)) for s in samples]
    step, sequence, context = _least_squares(rows, [s.step for s in samples])
    alone = [s for s in samples if s.at_once == min(s.at_once for s in samples)]
    rest = [s.first_token - step for s in alone]
    columns = [(1.0, float(s.at_once * s.context)) for s in alone]
    round_trip, prefill = _least_squares(columns, [max(value, 1e-9) for value in rest])
    return EngineModel(*(Constant(value, True) for value in (step, sequence, context, prefill, round_trip)))


def _least_squares(rows: Sequence[tuple[float, ...]], values: Sequence[float]) -> list[float]:
    """Coefficients of the columns; those that would be negative are left out, one after another."""
    import numpy as np

    weights = 1 / np.array(values)
    table = np.array(rows) * weights[:, None]
    used = [*range(table.shape[1])]
    result = [0.0] * len(used)
    while used:
        found = np.linalg.lstsq(table[:, used], np.ones(len(values)), rcond=None)[0]
        if found.min() >= 0:
            for column, value in zip(used, found, strict=True):
                result[column] = float(value)
            break
        used.remove(used[int(found.argmin())])
    return result
