"""A deterministic annotator behind a real OpenAI-compatible endpoint, that errs as a prompt tells it to.

It promises each paragraph of a response. A prompt may hold marks such as `[text]`: the errors of the first
reply to it, and with `[always]` of every one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from tests.helpers.chat_server import ChatServer, complete, send, serving

_ASKED = re.compile(r"PROMPT:\n(.*?)\n\nRESPONSE:\n(.*)", re.DOTALL)

ERRORS: dict[str, Callable[[str], str]] = {
    "text": lambda reply: reply.replace(" the ", " a ", 1),
    "topic": lambda reply: reply.replace('topic="', 'topic="four words and more ', 1),
}
"""The damage of each mark to a right reply."""


def annotation(response: str) -> str:
    """Each paragraph of five words or more as a promise."""
    parts = re.split(r"(\n\n)", response)
    return "".join(
        f'<promise topic="part {number}" tokens="10"/><async>{part}</async>'
        if len(part.split()) > 4
        else part
        for number, part in enumerate(parts)
    )


class Annotator(ChatServer):
    """The server's side: what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []
        """The prompt of each request."""
        self.conversations: list[list[dict[str, str]]] = []

    def answer(self, messages: list[dict[str, str]], handler: BaseHTTPRequestHandler) -> None:
        index = max(n for n, message in enumerate(messages) if message["content"].startswith("PROMPT:"))
        matched = _ASKED.fullmatch(messages[index]["content"])
        assert matched
        prompt, reply = matched[1], annotation(matched[2])
        again = index < len(messages) - 1
        with self.lock:
            self.requests.append(prompt)
            self.conversations.append(messages)
        if "[400]" in prompt:
            send(handler, 400, {"error": {"message": "as the prompt says: 400"}})
            return
        for mark, err in ERRORS.items():
            if f"[{mark}]" in prompt and ("[always]" in prompt or not again):
                reply = err(reply)
        cut = "[cut]" in prompt and not again
        complete(handler, reply[: len(reply) // 2] if cut else reply, "length" if cut else "stop")


@contextmanager
def running_annotator() -> Generator[Annotator]:
    """An annotator on a real socket, with threads of its own."""
    annotator = Annotator()
    with serving(annotator):
        yield annotator
