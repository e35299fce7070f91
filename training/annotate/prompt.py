"""What an annotator is asked: the language, our own examples, and what was wrong with its last reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async.lang import escape, parse
from pasta_async.training.annotate.examples import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.protocol import Message
    from pasta_async.training.corpus import Record

__all__ = ["INSTRUCTIONS", "first_prompt", "retry_prompt"]

INSTRUCTIONS = """\
You are given a prompt and a response to it. Mark the passages of the response that could have been written \
at the same time by several writers, none of whom sees what another one writes. You only put in tags; every \
other character of the response stays as it is, in its place. These are the tags, exactly as shown, and \
there are no others:

<promise topic="at most three words" tokens="60"/><async>the passage</async>
    around a passage that does not depend on what other passages say. topic says what it is about, tokens \
about how long it is, in tens. Its writer sees the prompt, the text outside of passages up to there, and the \
topics of the passages before, but not what they say. There is no space or line break between <promise .../> \
and <async>, and passages do not stand in each other.
<sync/>
    before text that needs to see the passages so far, such as a conclusion, a comparison or a total, or \
before a passage that builds on them. It is not needed at the end, nor before text that needs none of them.

Rules:
- A passage must make sense to write for somebody who has not seen the others of its round (those since the \
last <sync/>). It must not say "the former", "as mentioned above", "in contrast", "after that", and must not \
begin with a pronoun for something that only another passage names.
- A passage has two sentences or more, or a dozen words at least; shorter ones are not worth a tag.
- Numbers and dashes of lists, headings, and what introduces a list stay outside of passages.
- Steps of a calculation or a story, code, and short answers get no tag: then reply with the bare response.
- Where the response itself spells one of these tags, it is written with a backslash behind its "<"; keep it.

Reply with the response and its tags, and with nothing else.\
"""
"""The language, and what is asked."""


def first_prompt(record: Record) -> list[Message]:
    """The messages that ask for an annotation of a record's answer."""
    messages = [{"role": "system", "content": INSTRUCTIONS}]
    for prompt, written in EXAMPLES:
        messages.append(_asked(prompt, escape(parse(written).text)))
        messages.append({"role": "assistant", "content": written})
    return [*messages, _asked(record.prompt, escape(record.document.text))]


def retry_prompt(reply: str, reasons: Sequence[str]) -> list[Message]:
    """The messages that follow when a reply did not pass."""
    wrong = "\n".join(f"- {reason}" for reason in reasons)
    asked = f"This is not right yet:\n{wrong}\n\nReply with the whole response and its tags, corrected."
    return [{"role": "assistant", "content": reply}, {"role": "user", "content": asked}]


def _asked(prompt: str, response: str) -> Message:
    return {"role": "user", "content": f"PROMPT:\n{prompt}\n\nRESPONSE:\n{response}"}
