"""The closed vocabulary of the task."""

from __future__ import annotations

__all__ = ["COLORS", "FRUITS", "GOODS", "HOLDERS", "KINDS", "TREATS", "USES", "VESSELS"]

COLORS: tuple[str, ...] = tuple(
    "red blue green yellow black white brown pink grey orange purple golden".split()
)
KINDS: tuple[str, ...] = tuple("robot lamp boat clock bike horse drone kite violin tent camera radio".split())
"""Things that are described; the plural takes an s."""
USES: tuple[str, ...] = tuple(
    "long walks|quiet evenings|rainy days|school trips|morning work|loud parties|cold nights|"
    "slow travel|family games|garden work|night shifts|short breaks".split("|")
)
FRUITS: tuple[str, ...] = tuple("apples pears plums figs lemons melons cherries peaches".split())
GOODS: tuple[str, ...] = tuple("rope lamp tent map stove blanket bottle ladder".split())
VESSELS: tuple[str, ...] = tuple("box jar bag basket drawer bucket".split())
HOLDERS: tuple[str, ...] = tuple("coins marbles keys stamps shells buttons".split())
"""What lies in a vessel."""
TREATS: tuple[str, ...] = tuple("soup bread honey cheese cakes tea juice nuts".split())
