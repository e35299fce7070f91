"""Samples of Prometheus metrics, read back from the text that a scrape gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

DOCUMENT = (
    'Both are here. <promise topic="one" tokens="10"/><async>The first of both chunks.</async> '
    '<promise topic="two" tokens="10"/><async>And this is the second one.</async><sync/> That was all.'
)


class Samples:
    """One scrape."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self._samples = [sample for family in families for sample in family.samples]

    @classmethod
    def of(cls, registry: CollectorRegistry) -> Samples:
        return cls(generate_latest(registry).decode())

    def value(self, name: str, **labels: str) -> float:
        """The sum over all samples with these labels; 0 if there is none."""
        return sum(s.value for s in self._samples if s.name == name and labels.items() <= s.labels.items())

    def labels(self, name: str) -> set[str]:
        """Labels that samples of this name have."""
        return {label for sample in self._samples if sample.name == name for label in sample.labels}

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self._samples}
