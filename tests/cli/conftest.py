"""Ctrl-C works in these tests, also in a run that was started in the background, where it is ignored."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture(autouse=True)
def listens_to_ctrl_c() -> Generator[None]:
    """Python's own handler; a process that is started meanwhile has the system's."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
