"""An engine on a virtual clock: what parallel decoding would gain on hardware that is not at hand.

`EngineModel` says how long a step takes, fitted on a real engine; `SimulatedBackend` takes that time, and
everything else (interpreter, methods, loads) runs on it unchanged. `python -m pasta_async.evals.simulator`.
"""

from __future__ import annotations

from pasta_async.evals.simulator.engine import SimulatedBackend
from pasta_async.evals.simulator.model import Constant, EngineModel, Sample, fit

__all__ = ["Constant", "EngineModel", "Sample", "SimulatedBackend", "fit"]
