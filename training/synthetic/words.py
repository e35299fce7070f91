"""The closed vocabulary of the task."""

from __future__ import annotations

__all__ = ["COLORS", "FRUITS", "GOODS", "HOLDERS", "KINDS", "TREATS", "USES", "VESSELS"]

COLORS = "red blue green yellow black white brown pink grey orange purple golden".split()
KINDS = "robot lamp boat clock bike horse drone kite violin tent camera radio".split()
"""Things that are described; the plural takes an s."""
USES = tuple(
    "long walks|quiet evenings|rainy days|school trips|morning work|loud parties|cold nights|"
    "slow travel|family games|garden work|night shifts|short breaks".split("|")
)
FRUITS = "apples pears plums figs lemons melons cherries peaches".split()
GOODS = "rope lamp tent map stove blanket bottle ladder".split()
VESSELS = "box jar bag basket drawer bucket".split()
HOLDERS = "coins marbles keys stamps shells buttons".split()
"""What lies in a vessel."""
TREATS = "soup bread honey cheese cakes tea juice nuts".split()
