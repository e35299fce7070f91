"""The journal of a run: every reply that arrived, on disk before anything is made of it.

What was accepted follows from the replies, so nothing else is kept.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, ValidationError

from pasta_async import jobs as journal
from pasta_async.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Asked", "Journal", "Reply"]


class _Line(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class Asked(_Line):
    """The first line: what the replies answer."""

    model: str
    prompt: str
    """A hash of the instructions and examples."""
    temperature: float


class Reply(_Line):
    """What an annotator said."""

    key: str
    """The digest of the prompt and answer that it is about."""
    text: str
    finish_reason: str
    """Why it ended: "stop", "length", ..."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Journal(journal.Journal):
    """An open journal. One process at a time may have it open.

    Args:
        path: The file; it is made, or continued.
        asked: What will be asked.

    Raises:
        InvalidRequestError: The file holds replies to something else, or is no journal.
    """

    def __init__(self, path: Path, asked: Asked) -> None:
        super().__init__(path, asked.model_dump(), durable=True)
        self.replies: defaultdict[str, list[Reply]] = defaultdict(list)
        """By key, in the order of their attempts."""
        self._lock = anyio.Lock()
        try:
            for reply in map(Reply.model_validate, self.rows):
                self.replies[reply.key].append(reply)
        except ValidationError as error:
            raise InvalidRequestError(f"{path} is no journal of annotation: {error}") from None

    async def keep(self, reply: Reply) -> None:
        """Keep a reply: on disk when this returns. A cancellation does not interrupt the writing."""
        with anyio.CancelScope(shield=True):
            async with self._lock:
                await anyio.to_thread.run_sync(self.append, reply.model_dump())
            self.replies[reply.key].append(reply)
