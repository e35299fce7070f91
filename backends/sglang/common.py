"""What the server over HTTP and the engine in process have in common: the protocol, and a request's form."""

from __future__ import annotations

import itertools
import re
import uuid
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pasta_async.backends.sglang.events import Increments, LocalReader, RemoteReader
from pasta_async.backends.sglang.tokenizers import RemoteTokenizer
from pasta_async.errors import BackendProtocolError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from pasta_async.backends.tokenization import AsyncTextCodec
    from pasta_async.protocol import DecodeRequest, Message, ModelInfo, Piece

__all__ = ["ABORT_SECONDS", "Call", "ServedModel", "SGLangProtocol", "request_ids"]

_T = TypeVar("_T")

ABORT_SECONDS = 5.0
"""How long a cancelled request may take to be aborted before its cancellation goes on regardless."""

MAX_STOPS, MAX_STOP_PATTERN = 32, 256
"""Stop patterns that SGLang takes, and characters of one."""


def request_ids() -> Iterator[str]:
    """Names for requests, no two alike in the world.

    SGLang aborts every request whose id *begins* with the one named: ids of one length are no prefixes of
    each other.
    """
    process = uuid.uuid4().hex
    return (f"pasta-{process}-{number:012x}" for number in itertools.count())


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What was learned of a server, or of an engine."""

    info: ModelInfo
    tokenizer: AsyncTextCodec | RemoteTokenizer
    incremental: bool
    """Whether streams hold only what is new."""
    dp_size: int = 1
    has_tokenizer: bool = True
    """Whether SGLang knows what text its ids are."""

    def reader(self, stop_ids: Sequence[int]) -> LocalReader | RemoteReader:
        """A reader for one request, which asked to stop at these ids."""
        if isinstance(self.tokenizer, RemoteTokenizer):
            return RemoteReader(self.info.tags, stop_ids, self.tokenizer.detokenize_for_reader)
        return LocalReader(self.tokenizer.detokenizer(), self.info.tags, stop_ids)


class Call(Protocol):
    """One request under way."""

    over: bool
    """Whether nothing of it is left to abort."""

    async def next(self) -> dict[str, Any] | None:
        """The next event, None at the end."""
        ...


class SGLangProtocol(ABC):
    """The backend protocol, but for how the model is reached and how requests get there."""

    @abstractmethod
    async def _connected(self) -> ServedModel: ...

    @abstractmethod
    def _send(self, request: DecodeRequest, body: dict[str, Any]) -> AbstractAsyncContextManager[Call]:
        """Send a request; it is aborted on the way out, unless it is over."""

    async def _tokenize(self, work: Callable[[AsyncTextCodec | RemoteTokenizer], Awaitable[_T]]) -> _T:
        return await work((await self._connected()).tokenizer)

    async def connect(self) -> ModelInfo:
        """Reach or start SGLang and learn its model, once. Raises and may be cancelled as the class says."""
        return (await self._connected()).info

    async def encode(self, text: str) -> list[int]:
        """Encode text as data. Raises as `encode_chat`; may be cancelled at any point."""
        return await self._tokenize(lambda tokenizer: tokenizer.encode(text))

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Encode messages by the model's chat template. May be cancelled at any point.

        Raises:
            InvalidRequestError: The text is no valid Unicode, or cannot be encoded as data.
            PromptTooLongError: It has far more tokens than the model takes.
            BackendError: SGLang failed, or its template refused the messages (400).
        """
        return await self._tokenize(lambda tokenizer: tokenizer.encode_chat(messages, template_kwargs))

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept. May be cancelled at any point."""
        checked = _checked_ids(ids, await self.connect())
        return await self._tokenize(lambda tokenizer: tokenizer.detokenize(checked))

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode a request.

        Closing the generator, or cancelling the task that iterates it, aborts the request before it returns,
        in at most 5 s.

        Raises:
            InvalidRequestError: The ids do not fit the model. Nothing was sent.
            BackendError: SGLang refused or failed, or the backend was closed.
        """
        model = await self._connected()
        increments = Increments(
            model.info.vocab_size,
            incremental=model.incremental and request.stream,
            has_text=isinstance(model.tokenizer, RemoteTokenizer),
        )
        reader = model.reader(request.stop_ids)
        async with self._send(request, _body(request, model)) as call:
            while (event := await call.next()) is not None:
                for piece in await reader.read(increments.take(event)):
                    call.over = call.over or piece.finish_reason is not None
                    if not request.max_tokens:  # SGLang answers with one all the same
                        piece = piece._replace(ids=(), text="")
                    yield piece
            if not call.over:
                raise BackendProtocolError(f"{model.info.name}: the stream ended without a finish reason")


def _body(request: DecodeRequest, model: ServedModel) -> dict[str, Any]:
    """A request in the form of `/generate`; mappings in `request.extra` are merged into its fields."""
    params = _sampling_params(request, model.info)
    if not model.has_tokenizer:  # it could not tell what the text is
        params.pop("stop_regex", None)
    body: dict[str, Any] = {
        "input_ids": _checked_ids(request.ids, model.info),
        "sampling_params": params,
        "stream": request.stream,
    }
    if model.dp_size > 1:  # each rank has a prefix cache of its own
        body["routed_dp_rank"] = zlib.crc32(request.answer.encode()) % model.dp_size
    for name, value in request.extra.items():
        mine = body.get(name)
        body[name] = {**mine, **value} if isinstance(mine, dict) else value
    return body


def _checked_ids(ids: Sequence[int], info: ModelInfo) -> list[int]:
    """The ids, if the server can take them: one outside the vocabulary kills it."""
    numbers = set(map(type, ids)) <= {int}
    if not numbers or (ids and not 0 <= min(ids) <= max(ids) < info.vocab_size):
        bad = next(i for i in ids if type(i) is not int or not 0 <= i < info.vocab_size)
        raise InvalidRequestError(f"{bad!r} is no token id of {info.name} (0 to {info.vocab_size - 1})")
    return list(ids)


def _sampling_params(request: DecodeRequest, info: ModelInfo) -> dict[str, Any]:
    """SGLang's sampling parameters; what a server could have another default for is spelled out."""
    room = info.context_length - len(request.ids)
    if not request.ids or room < 1:
        raise InvalidRequestError(
            f"a context of {len(request.ids)} tokens; {info.name} takes 1 to {info.context_length - 1}, "
            f"since prompt and answer share {info.context_length}"
        )
    sampling = request.sampling
    params: dict[str, Any] = {
        "max_new_tokens": min(request.max_tokens, room),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "ignore_eos": False,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
    }
    if request.stop_ids:
        params["stop_token_ids"] = list(request.stop_ids)
    # As patterns: behind a stop string SGLang cuts the text but not the ids, here neither.
    patterns = [f"(?:{re.escape(text)})" for text in request.stop_text if text]
    if patterns := [pattern for pattern in patterns if len(pattern) <= MAX_STOP_PATTERN]:
        params["stop_regex"] = patterns[:MAX_STOPS]
    if info.honours_seeds and request.seed is not None:
        params["sampling_seed"] = request.seed
    return params
