"""A deterministic annotator behind a real OpenAI-compatible endpoint, that errs as a prompt tells it to.

It promises each paragraph of a response. A prompt may hold marks such as `[text]`: the errors of the first
reply to it, and with `[always]` of every one.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
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
    """The server's side: what was asked, and when it holds back."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []
        """The prompt of each request."""
        self.conversations: list[list[dict[str, str]]] = []
        self.answered = 0
        self.answer_at_most: int | None = None
        """Hold back when so many were answered."""
        self._released = threading.Event()

    def prompts(self) -> Counter[str]:
        """The number of times that each prompt was asked about."""
        return Counter(self.requests)

    def wait_for_requests(self, count: int) -> None:
        """Wait until so many requests came in."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests) >= count, timeout=60)

    def release(self) -> None:
        """Hold nothing back any more."""
        self.answer_at_most = None
        self._released.set()

    def answer(self, messages: list[dict[str, str]], handler: BaseHTTPRequestHandler) -> None:
        index = max(n for n, message in enumerate(messages) if message["content"].startswith("PROMPT:"))
        matched = _ASKED.fullmatch(messages[index]["content"])
        assert matched
        prompt, reply = matched[1], annotation(matched[2])
        again = index < len(messages) - 1
        status = 400 if "[400]" in prompt else 200
        with self.changed:
            self.requests.append(prompt)
            self.conversations.append(messages)
            held = self.answer_at_most is not None and self.answered >= self.answer_at_most
            if status == 200 and not held:
                self.answered += 1
            self.changed.notify_all()
        if status != 200:
            send(handler, status, {"error": {"message": f"as the prompt says: {status}"}})
            return
        if held:
            self._released.wait()
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
