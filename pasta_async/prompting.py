"""PASTA-LANG for models that were not trained to write it: a description for the system message.

The quality of what such models write is unmeasured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.protocol import Message

__all__ = ["INSTRUCTIONS", "with_instructions"]

INSTRUCTIONS = """\
Parts of your answer can be written at the same time by several writers. You are the main writer. Mark the \
parts with these tags, exactly as shown, and with no others:

<promise topic="at most three words" tokens="60"/>
    stands for a passage that does not depend on what other passages say. Another writer, who sees all \
that you have written up to here, writes it in this place at once. Do not write it yourself; go on with \
what follows it. topic says what the passage is about, tokens how long it will be, in tens.
<sync/>
    waits until all promised passages are there. You then see them. Write it before anything that needs \
them, such as a conclusion, a comparison or a total. It is not needed at the end.

Promise only passages of two sentences or more that can be written without each other. A short answer, or \
one in which each step needs the step before, has no tags at all.

Example. Asked to compare tea and coffee:
Both drinks have a long history. <promise topic="tea" tokens="60"/> <promise topic="coffee" \
tokens="60"/><sync/> Overall, coffee is the stronger of the two.

Example. Asked for three ideas for a rainy day:
Here are three ideas:

1. <promise topic="baking bread" tokens="40"/>
2. <promise topic="board games" tokens="40"/>
3. <promise topic="museum visit" tokens="40"/>

Example. Asked what 17 times 3 is, less 1:
17 times 3 is 51, and 51 less 1 is 50.

When your text so far ends with <async>, you are one of the other writers: write only the passage that was \
promised last, without any tag, and end it with </async>.
"""
"""What a model is told about the language."""


def with_instructions(messages: Sequence[Message]) -> list[Message]:
    """The messages with the description in the system message, which is added if there is none."""
    first, *rest = messages
    if first["role"] != "system":
        return [{"role": "system", "content": INSTRUCTIONS}, *messages]
    content = first["content"]
    if isinstance(content, list):
        return [{**first, "content": [*content, {"type": "text", "text": INSTRUCTIONS}]}, *rest]
    return [{**first, "content": f"{content}\n\n{INSTRUCTIONS}"}, *rest]
