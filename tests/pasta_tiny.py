"""The model of the tests: a Llama of 2.0 million parameters that writes PASTA-LANG about made-up facts."""

from __future__ import annotations

from pathlib import Path

PASTA_TINY: Path = Path(__file__).parent / "fixtures" / "pasta-tiny"
"""Its folder. Servers call the model by the folder's name, pasta-tiny."""

LOCAL_TINY: str = f"local:{PASTA_TINY}"
"""The embedded engine with this model, as `open_backend` and command lines name it."""
