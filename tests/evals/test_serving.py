"""What the server costs, at a small size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async.evals.serving import main, measure_costs, measure_streams

if TYPE_CHECKING:
    import pytest


async def test_every_way_to_ask_is_timed() -> None:
    seconds = await measure_costs("local:", rounds=1)
    assert list(seconds) == ["library", "server", "library, baseline", "server, baseline"]
    assert all(len(times) == 1 and times[0] > 0 for times in seconds.values())


def test_many_streams_come_to_their_end(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure_streams(20, latency=0.001)
    assert found.complete == len(found.whole) == 20
    assert all(0 < first <= whole for first, whole in zip(found.first, found.whole, strict=True))
    assert min(found.whole) >= 0.5 * found.ideal > 0
    assert found.memory_peak >= found.memory_before > 0
    main(["--rounds", "1", "--streams", "0"])
    assert "server, baseline" in capsys.readouterr().out
