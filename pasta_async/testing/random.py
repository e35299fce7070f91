"""A backend without a model that writes random tokens within a request's grammar: for tests of plans."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import get_args

from pasta_async.engine_load import EngineLoad
from pasta_async.errors import InvalidRequestError
from pasta_async.grammar import GrammarKind, grammar_vocabulary
from pasta_async.protocol import DecodeRequest, Model, Piece, RequestEnd
from pasta_async.testing.tokenizer import word_tokenizer


class RandomBackend:
    """Writes random tokens, within the grammar where a request has one.

    A request's output depends on the seed and on its context alone, so it is the same whatever else runs.

    Args:
        seed: Seed of the random choices.
        endless: Never end where more is allowed, so that every request is cut off at its token limit.
        grammars: Kinds of grammars that it takes; a server takes `json_schema` alone.
        context_length: Longest prompt with output, in tokens.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        endless: bool = False,
        grammars: Sequence[GrammarKind] = get_args(GrammarKind),
        context_length: int = 131_072,
    ) -> None:
        tokenizer = word_tokenizer((), tags=False)
        self._seed = seed
        self._endless = endless
        self._vocabulary = grammar_vocabulary(tokenizer)
        self._model = Model(
            name="random",
            tokenizer=tokenizer,
            context_length=context_length,
            vocab_size=tokenizer.vocab_size,
            honours_seeds=True,
            grammars=frozenset(grammars),
        )
        self.requests: list[DecodeRequest] = []
        """Every request that was made, in order."""
        self.open: int = 0
        """Requests that are running."""
        self.max_open: int = 0
        """Largest number of requests that ran at the same time."""

    async def connect(self) -> Model:
        """The model. Never waits, so there is nothing to cancel."""
        return self._model

    async def load(self) -> EngineLoad | None:
        """None: it does not tell. Never waits, so there is nothing to cancel."""
        return None

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Write a token in each piece. Closing it early or cancelling its task ends the request at once.

        Raises:
            InvalidRequestError: The grammar is of a kind that is not taken.
        """
        if request.grammar and request.grammar.kind not in self._model.grammars:
            raise InvalidRequestError(f"no grammar of the kind {request.grammar.kind} is taken here")
        self.requests.append(request)
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        try:
            for token, finish_reason in self._tokens(request):
                await asyncio.sleep(0)
                yield Piece((token,), finish_reason, 0)
        finally:
            self.open -= 1

    async def aclose(self) -> None:
        """Nothing is to be released. Never waits, so there is nothing to cancel."""

    def _tokens(self, request: DecodeRequest) -> Iterable[tuple[int, RequestEnd | None]]:
        """The output of a request, with the reason of its end at the last token."""
        chance = random.Random(f"{self._seed}/{request.seed}/{request.ids}")
        matcher = request.grammar.matcher(self._vocabulary) if request.grammar else None
        end = self._model.end_ids[0]
        commands = self._model.tokenizer.commands
        every = [token for token in range(self._model.vocab_size) if token not in commands]
        for count in range(1, request.max_tokens + 1):
            allowed = _set_bits(matcher.compute_bitmask()) if matcher else [*every, end]
            if self._endless and len(allowed) > 1 and end in allowed:
                allowed.remove(end)
            token = chance.choice(allowed)
            if matcher:
                matcher.consume_token(token)
            if token in (end, *request.stop_ids) or (matcher and matcher.is_stopped()):
                yield token, "stop"
                return
            yield token, "length" if count == request.max_tokens else None


def _set_bits(mask: bytes) -> list[int]:
    """The tokens that a mask allows: bit i of byte k stands for token 8k + i."""
    return [8 * k + i for k, byte in enumerate(mask) if byte for i in range(8) if byte >> i & 1]
