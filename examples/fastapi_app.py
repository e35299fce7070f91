"""One's own web backend with FastAPI: answers as server-sent events, and over a WebSocket.

uvicorn examples.fastapi_app:app
curl -N -X POST "http://127.0.0.1:8000/ask?prompt=..."
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, WebSocket, WebSocketDisconnect

import pasta_async
from pasta_async.server import AnswerResponse, event_fields


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """One client for the process; PASTA_BACKEND names an SGLang server, else pasta-smol answers."""
    async with pasta_async.Client(limits=pasta_async.Limits(timeout=60)) as client:
        await client.connect()
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/ask")
async def ask(prompt: str) -> AnswerResponse:
    """The answer as server-sent events. A browser that goes away ends it with all its threads."""
    client: pasta_async.Client = app.state.client
    return AnswerResponse(client.stream(prompt, max_tokens=400))


@app.websocket("/talk")
async def talk(connection: WebSocket) -> None:
    """An answer to each message, event by event. Whoever hangs up while one is decoded ends it."""
    await connection.accept()
    client: pasta_async.Client = app.state.client
    try:
        while True:
            async with client.stream(await connection.receive_text(), max_tokens=400) as answer:
                async for event in answer:
                    await connection.send_json(event_fields(event))
    except WebSocketDisconnect:
        pass
