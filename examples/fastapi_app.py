"""A web backend of your own with FastAPI: answers as server-sent events, over a WebSocket, and forms.

pip install '.[local,server]' fastapi sse-starlette websockets
pasta-async pull pasta-smol    # unless PASTA_BACKEND names an SGLang or vLLM server
uvicorn examples.fastapi_app:app
curl -N -X POST "http://127.0.0.1:8000/ask?prompt=..."
curl -X POST "http://127.0.0.1:8000/review?text=..."
curl -N -X POST "http://127.0.0.1:8000/review/stream?text=..."
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sse_starlette import EventSourceResponse, JSONServerSentEvent

import pasta_async
from pasta_async import After, AnswerStream, Filled, FillStream, Tokens
from pasta_async.server import event_fields


class Review(BaseModel):
    """Strengths and weaknesses are written at once, then the stars, which see both."""

    strengths: Annotated[list[str], Field(max_length=4), Tokens(40)]
    weaknesses: Annotated[list[str], Field(max_length=4), Tokens(40)]
    stars: Annotated[int, Field(ge=1, le=5), After("strengths", "weaknesses")]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """One client for the process; PASTA_BACKEND names an SGLang or vLLM server, else `local:` answers."""
    async with pasta_async.Client(limits=pasta_async.Limits(timeout=60)) as client:
        await client.connect()
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(pasta_async.InvalidRequestError)
async def refuse(_: Request, error: pasta_async.InvalidRequestError) -> JSONResponse:
    """A prompt that is empty or too long is the caller's mistake, not the server's."""
    return JSONResponse({"error": str(error)}, status_code=400)


def told(error: pasta_async.PastaError) -> str:
    """The message of an error for users: those of the engine name its address, and are for the log."""
    if isinstance(error, pasta_async.InvalidRequestError):
        return str(error)
    logging.getLogger(__name__).error("an answer failed: %s", error)
    return "the answer failed"


async def sent(stream: AnswerStream | FillStream[Review]) -> AsyncGenerator[JSONServerSentEvent]:
    """The events of a stream as server-sent ones; the last one is an error if it fails."""
    try:
        async with stream as events:
            async for event in events:
                yield JSONServerSentEvent(event_fields(event), event=event.type)
    except pasta_async.PastaError as error:
        yield JSONServerSentEvent({"message": told(error)}, event="error")


@app.post("/ask")
async def ask(prompt: str) -> EventSourceResponse:
    """The answer as server-sent events. A browser that goes away ends it with all its threads."""
    client: pasta_async.Client = app.state.client
    return EventSourceResponse(sent(client.stream(prompt, max_tokens=400)))


@app.websocket("/talk")
async def talk(connection: WebSocket) -> None:
    """An answer to each message, event by event. Whoever hangs up while one is decoded ends it."""
    await connection.accept()
    client: pasta_async.Client = app.state.client
    try:
        while True:
            prompt = await connection.receive_text()
            try:
                async with client.stream(prompt, max_tokens=400) as answer:
                    async for event in answer:
                        await connection.send_json(event_fields(event))
            except pasta_async.PastaError as error:
                await connection.send_json({"type": "error", "message": told(error)})
    except WebSocketDisconnect:
        pass


@app.post("/review")
async def review(text: str) -> Filled[Review]:
    """A form, and the record of how it was filled."""
    client: pasta_async.Client = app.state.client
    return await client.fill(f"Sum up this review of a hotel.\n\n{text}", Review)


@app.post("/review/stream")
async def review_stream(text: str) -> EventSourceResponse:
    """A form as server-sent events: the fields as they come, at last the whole (`fill.done`)."""
    client: pasta_async.Client = app.state.client
    return EventSourceResponse(sent(client.fill_stream(f"Sum up this review of a hotel.\n\n{text}", Review)))
