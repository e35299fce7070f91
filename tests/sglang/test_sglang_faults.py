"""Faults of the connection to the real server, of the kinds that take no waiting; `make torture` has all."""

from __future__ import annotations

import pytest
from real_server import RealServer

from tests.torture.engines import ServerEngine
from tests.torture.faults import through_proxy
from tests.torture.proxy import Fault

pytestmark = pytest.mark.timeout(600)  # the first test waits for the server to start

FAULTS = [
    Fault("refused", 3, 0),
    Fault("cut", 0, 3100),
    Fault("wrong id", 0, 1500),
]


async def test_a_fault_ends_its_own_answer_by_name_and_no_other(server: RealServer) -> None:
    async with through_proxy(ServerEngine(server.url, 0)) as faults:
        for fault in FAULTS:
            await faults.trial(fault)
    assert not any("too late" in counts for counts in faults.found.values())
    ended = {kind for kind, counts in faults.found.items() if "right after all" not in counts}
    assert ended == {fault.kind for fault in FAULTS} - {"refused"}
