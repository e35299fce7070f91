"""A deterministic annotator behind a real OpenAI-compatible endpoint, that errs as a prompt tells it to.

It promises each paragraph of a response. A prompt may hold marks such as `[text]`: the errors of the first
reply to it, and with `[always]` of every one.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

_ASKED = re.compile(r"PROMPT:\n(.*?)\n\nRESPONSE:\n(.*)", re.DOTALL)

ERRORS: dict[str, Callable[[str], str]] = {
    "text": lambda reply: reply.replace(" the ", " a ", 1),
    "form": lambda reply: reply.replace("</async>", "", 1),
    "topic": lambda reply: reply.replace('topic="', 'topic="four words and more ', 1),
    "nothing": lambda _: "",
}
"""What a mark makes of a right reply."""

STATUSES = (400, 401)


def annotation(response: str) -> str:
    """Each paragraph of five words or more as a promise."""
    parts = re.split(r"(\n\n)", response)
    return "".join(
        f'<promise topic="part {number}" tokens="10"/><async>{part}</async>'
        if len(part.split()) > 4
        else part
        for number, part in enumerate(parts)
    )


class Annotator:
    """The server's side: what was asked, and when it holds back."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, int]] = []
        """The prompt of each request, and how many replies it had had."""
        self.conversations: list[list[dict[str, str]]] = []
        self.answered = 0
        self.answer_at_most: int | None = None
        """Hold back when so many were answered."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = threading.Condition()
        self._released = asyncio.Event()

    def prompts(self) -> Counter[str]:
        """How often each prompt was asked about."""
        return Counter(prompt for prompt, _ in self.requests)

    def wait_for_requests(self, count: int) -> None:
        """Wait until so many requests came in."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= count, timeout=60)

    def release(self) -> None:
        """Hold nothing back any more."""
        self.answer_at_most = None
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._released.set)

    async def complete(self, request: Request) -> Response:
        """`/v1/chat/completions`."""
        self._loop = asyncio.get_running_loop()
        body: dict[str, Any] = await request.json()
        messages: list[dict[str, str]] = body["messages"]
        place = max(n for n, message in enumerate(messages) if message["content"].startswith("PROMPT:"))
        asked = _ASKED.fullmatch(messages[place]["content"])
        assert asked
        prompt, response = asked[1], asked[2]
        again = place < len(messages) - 1
        with self._changed:
            before = self.prompts()[prompt]
            self.requests.append((prompt, before))
            self.conversations.append(messages)
            self._changed.notify_all()
        for status in STATUSES:
            if f"[{status}]" in prompt:
                return JSONResponse(
                    {"error": {"message": f"as the prompt says: {status}"}}, status, {"retry-after": "0"}
                )
        if self.answer_at_most is not None and self.answered >= self.answer_at_most:
            await self._released.wait()
        self.answered += 1
        reply = annotation(response)
        for mark, err in ERRORS.items():
            if f"[{mark}]" in prompt and ("[always]" in prompt or not again):
                reply = err(reply)
        cut = "[cut]" in prompt and not again
        message = {"role": "assistant", "content": reply[: len(reply) // 2] if cut else reply}
        choice = {"index": 0, "message": message, "finish_reason": "length" if cut else "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        return JSONResponse(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": "annotator",
                "choices": [choice],
                "usage": usage,
            }
        )


@contextmanager
def running_annotator() -> Generator[Annotator]:
    """An annotator on a real socket, with a loop and a thread of its own."""
    annotator = Annotator()
    app = Starlette(routes=[Route("/v1/chat/completions", annotator.complete, methods=["POST"])])
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    annotator.url = f"http://127.0.0.1:{socket.getsockname()[1]}/v1"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        yield annotator
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        socket.close()
