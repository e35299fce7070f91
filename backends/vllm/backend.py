"""vLLM over HTTP: a stock server's `/v1/completions`, token ids in and out.

Its token-in token-out endpoint (`/inference/v1/generate`) is off unless the server was started with
`--enable-scale-out`. A request ends when its connection is closed: a stock server has no other way.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from pasta_async.backends.http import Call, ServerBackend, ServerOptions, checked_ids, merged
from pasta_async.backends.vllm.handshake import VLLMModel, shake_hands
from pasta_async.backends.vllm.metrics import LoadReader
from pasta_async.errors import BackendProtocolError, BackendStatusError
from pasta_async.load import EngineLoad
from pasta_async.protocol import DecodeRequest, Piece

SESSION = "X-Session-ID"
"""The header by which vLLM's router keeps requests together; a server takes it as a label."""

RANK = "X-data-parallel-rank"
"""The header that names the data-parallel engine which decodes a request."""

NEVER = -100.0
"""Added to the logit of a banned id: the lowest bias that vLLM accepts."""


class VLLMBackend(ServerBackend[VLLMModel]):
    """A vLLM server, as it is started by `vllm serve MODEL`.

    With `--enable-prompt-tokens-details` it also tells how much of a context it found in its prefix cache.

    Args:
        url: Base URL of the server.
        model: The model to ask, a LoRA adapter for instance; None: the one that it serves.
        options: Those of `ServerBackend`.
    """

    kind = "vLLM"

    def __init__(self, url: str, *, model: str | None = None, **options: Unpack[ServerOptions]) -> None:
        super().__init__(url, **options)
        self._name = model
        self._load = LoadReader(self._http)

    async def _learn(self) -> VLLMModel:
        return await shake_hands(self._http, self._tokenizer, self._name)

    async def _read_load(self) -> EngineLoad:
        return await self._load.read()

    def _call(self, request: DecodeRequest, served: VLLMModel) -> Call:
        headers = {SESSION: request.answer, **(request.headers or {})}
        if served.engines > 1:  # each has a prefix cache of its own
            headers[RANK] = str(zlib.crc32(request.answer.encode()) % served.engines)
        ends = {*request.stop_ids, *served.model.end_ids}
        return _Completion(f"{self.url}/v1/completions", _body(request, served), headers, ends)


class _Completion(Call):
    """A request to `/v1/completions`."""

    def __init__(self, url: str, body: dict[str, Any], headers: Mapping[str, str], ends: set[int]) -> None:
        super().__init__(url, body, headers)
        self._ends = ends
        self._last: Piece | None = None

    def pieces(self, event: Mapping[str, Any]) -> Iterable[Piece]:
        """The new tokens of an event. The last ones wait for the usage, which says what was cached.

        An end-of-text id that only the server knows is left out: it has no text.
        """
        for choice in event["choices"]:
            if choice.get("token_ids") is None:
                raise BackendProtocolError(f"{self.url} sent no token ids; does a proxy leave them out?")
            piece = Piece(tuple(choice["token_ids"]), choice["finish_reason"])
            if piece.finish_reason is None:
                yield piece
            elif piece.finish_reason in ("stop", "length"):
                is_known = (
                    piece.finish_reason == "length" or piece.ids[-1:] == () or piece.ids[-1] in self._ends
                )
                self._last = piece if is_known else piece._replace(ids=piece.ids[:-1])
            else:
                raise BackendStatusError(f"the server ended the request: {piece.finish_reason}", status=503)
        if self._last and (usage := event.get("usage")):
            details: dict[str, int] = usage.get("prompt_tokens_details") or {}
            yield self._last._replace(cached_tokens=details.get("cached_tokens"))

    async def abort(self) -> None:
        """Close the connection: that makes the server end the request."""
        if self.events:
            await self.events.break_off()


def _body(request: DecodeRequest, served: VLLMModel) -> dict[str, Any]:
    """The body for `/v1/completions`, including fields whose default may differ from server to server."""
    model = served.model
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model.name,
        "prompt": checked_ids(request.ids, model),
        "max_tokens": min(request.max_tokens, model.context_length - len(request.ids)),
        "stream": request.stream,
        "return_token_ids": True,
        "stop_token_ids": [*request.stop_ids, *model.end_ids],
        "ignore_eos": False,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or 0,
        "min_p": sampling.min_p,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
    }
    if request.stream:
        body["stream_options"] = {"include_usage": True}
    if sampling.repetition_penalty is not None:  # else as the model's generation_config.json says
        body["repetition_penalty"] = sampling.repetition_penalty
    if request.seed is not None:
        body["seed"] = request.seed
    if request.banned_ids:
        body["logit_bias"] = dict.fromkeys(map(str, request.banned_ids), NEVER)
    if request.grammar:
        body["structured_outputs"] = {"json": request.grammar.text}
    return merged(body, request.extra)
