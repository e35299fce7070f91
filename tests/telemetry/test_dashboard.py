"""The dashboard and the documentation name the metrics that there are, and no others."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from pasta_async import Client, ThreadFailedError
from pasta_async.server import create_app
from pasta_async.testing import Fault, ScriptedBackend
from tests.helpers.metric_samples import DOCUMENT, Samples

DOCS = Path(__file__).parents[2] / "docs"
ODD = DOCUMENT + "<sync/> A sync with nothing to join."
NAME = re.compile(r"\b(?:pasta|process)_[a-z_]+")
OUTSIDE = {"instance", "le"}
"""Labels that Prometheus itself puts there."""


@pytest.fixture(scope="module")
def scrape() -> Samples:
    """A server's metrics after an answer and a failure, so that each has a sample."""
    return asyncio.run(_scrape())


async def _scrape() -> Samples:
    app = create_app(ScriptedBackend(ODD, faults=[Fault(thread=1, after_tokens=0, skip=1)]))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as http:
        client: Client = app.state.service.client
        await client.generate("x")
        with pytest.raises(ThreadFailedError):
            await client.generate("y")
        await http.get("http://test/health")
        return Samples((await http.get("http://test/metrics")).text)


def expressions() -> list[str]:
    dashboard: Any = json.loads((DOCS / "grafana" / "pasta-async.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    variables = [variable["definition"] for variable in dashboard["templating"]["list"][1:]]
    return [*queries, *variables]


@pytest.mark.parametrize("expression", expressions())
def test_expressions_name_metrics_and_labels_that_exist(expression: str, scrape: Samples) -> None:
    named = set(NAME.findall(expression))
    assert named and named <= scrape.names
    used = set(re.findall(r"(\w+)=", expression))
    for group in re.findall(r"by \(([^)]*)\)", expression):
        used |= {label.strip() for label in group.split(",")}
    for name in named:
        assert used - OUTSIDE <= scrape.labels(name)


def test_the_documentation_lists_every_metric(scrape: Samples) -> None:
    text = (DOCS / "serving.md").read_text()
    listed = set(re.findall(r"^\| `(pasta_[a-z_]+)`", text, re.MULTILINE))
    there = {re.sub(r"_(bucket|sum|count)$", "", name) for name in scrape.names if name.startswith("pasta_")}
    there = {name for name in there if not name.endswith("_created")}
    assert listed == there
