"""pasta-smol for tests that need a model that answers real prompts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pasta_async.backends.local.bases import ADAPTER_CONFIG, default_model, find_model


def require_pasta_smol() -> Path:
    """Its folder; skip where its base is not on this machine, and fail where the suite must be complete."""
    folder, missing = default_model()
    if missing is None:
        return folder
    if os.environ.get("CI") and (find_model("pasta-smol") / ADAPTER_CONFIG).is_file():
        pytest.fail(missing)
    pytest.skip(missing)
