"""The look of the plots, light and dark, in the colours of the project's pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["DARK", "LIGHT", "Theme"]


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of one theme."""

    name: str
    card: str
    ink: str
    soft: str
    line: str
    series: tuple[str, ...]

    def colour(self, number: int) -> str:
        """The colour of a series."""
        return self.series[number % len(self.series)]

    @property
    def settings(self) -> dict[str, Any]:
        """For `matplotlib.rc_context`."""
        return {
            "figure.facecolor": self.card,
            "axes.facecolor": self.card,
            "savefig.facecolor": self.card,
            "text.color": self.ink,
            "axes.labelcolor": self.soft,
            "axes.edgecolor": self.line,
            "axes.linewidth": 1.0,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "grid.color": self.line,
            "grid.alpha": 0.55,
            "grid.linewidth": 0.8,
            "xtick.color": self.soft,
            "ytick.color": self.soft,
            "font.size": 10.5,
            "font.family": "sans-serif",
            "legend.frameon": False,
            "legend.labelcolor": self.ink,
            "svg.fonttype": "path",
            "svg.hashsalt": "pasta_async",
            "figure.constrained_layout.use": True,
        }


LIGHT = Theme(
    "light",
    card="#fffdf9",
    ink="#25211a",
    soft="#655d4f",
    line="#ddd5c5",
    series=("#9a5b00", "#3257b8", "#1d7a4a", "#a3338b", "#b33a2c", "#0d7682", "#6a4fc4", "#6b6a1d"),
)
DARK = Theme(
    "dark",
    card="#1d1b16",
    ink="#f0ebe0",
    soft="#ada491",
    line="#38332a",
    series=("#f2b950", "#8fb0ff", "#7fd6a0", "#f09bd6", "#ff9b8f", "#6fd3dd", "#bba7ff", "#d3d16a"),
)
