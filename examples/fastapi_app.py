"""One's own web backend with FastAPI: answers as server-sent events, and over a WebSocket.

    uvicorn examples.fastapi_app:app

As a program it serves itself on a free port and asks both ways.
"""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from websockets.asyncio.client import connect

import pasta_async
from pasta_async.server import AnswerResponse, event_fields

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PROMPT = (
    "Add up the fruits. Mireko has 2 apples, 3 plums and 2 figs. Sotani has 4 pears, 2 lemons and 5 melons."
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """One client for the process; PASTA_BACKEND names an SGLang server, else the shipped model answers."""
    async with pasta_async.Client(limits=pasta_async.Limits(timeout=60)) as client:
        await client.connect()
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/ask")
async def ask(prompt: str) -> AnswerResponse:
    """The answer as server-sent events. A browser that goes away ends it with all its threads."""
    client: pasta_async.Client = app.state.client
    return AnswerResponse(client.stream(prompt))


@app.websocket("/talk")
async def talk(connection: WebSocket) -> None:
    """An answer to each message, event by event. Whoever hangs up while one is decoded ends it."""
    await connection.accept()
    client: pasta_async.Client = app.state.client
    try:
        while True:
            async with client.stream(await connection.receive_text()) as answer:
                async for event in answer:
                    await connection.send_json(event_fields(event))
    except WebSocketDisconnect:
        pass


async def main() -> None:
    """Serve, ask over both, and print the answers."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listener]))  # who asks before it is ready waits
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    try:
        print(await over_events(f"http://{address}/ask"))
        print(await over_websocket(f"ws://{address}/talk"))
    finally:
        server.should_exit = True
        await serving


async def over_events(url: str) -> str:
    """What a browser's `EventSource` or `fetch` does."""
    text = ""
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", url, params={"prompt": PROMPT}) as reply,
    ):
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                if event["type"] == "text.delta":
                    text += event["delta"]
    return text


async def over_websocket(url: str) -> str:
    """What a browser's `WebSocket` does."""
    text = ""
    async with connect(url) as connection:
        await connection.send(PROMPT)
        async for message in connection:
            event = json.loads(message)
            if event["type"] == "text.delta":
                text += event["delta"]
            elif event["type"] == "answer.done":
                break
    return text


if __name__ == "__main__":
    asyncio.run(main())
