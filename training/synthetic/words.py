"""The closed vocabulary of the task."""

from __future__ import annotations

__all__ = [
    "CLOSINGS",
    "COLORS",
    "FRUITS",
    "GOODS",
    "HOLDERS",
    "KINDS",
    "OPENINGS",
    "TREATS",
    "USES",
    "VESSELS",
]

COLORS: tuple[str, ...] = tuple(
    "red blue green yellow black white brown pink grey silver purple golden".split()
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
OPENINGS: tuple[str, ...] = tuple(
    "Hi there!|Good morning!|Hello, I have a question.|I hope you can help me.|I need some help.|"
    "Dear friend!|This is for my school.|It rains today, so I have time.|Let me ask you something.|"
    "Listen to this.|My sister told me this.|We talked about it yesterday.|Here is what I know.|"
    "Look at this, please.".split("|")
)
"""What a user may say before a request; it changes nothing."""
CLOSINGS: tuple[str, ...] = tuple(
    "Thanks a lot!|Thank you very much.|Please be quick.|Can you help me with this?|What do you say?|"
    "I look forward to your answer.|My sister wants to know.|That would be a great help.|Take your time.|"
    "Do you see what I mean?|Will you do that for me?|I have to know it today.|Nobody else could tell me.|"
    "See you soon!".split("|")
)
"""What a user may say after a request."""
