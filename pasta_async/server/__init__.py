"""PASTA behind OpenAI's HTTP API, and helpers for your own web app. Needs the extra `server`.

    app = create_app("http://127.0.0.1:30000")  # any ASGI server runs it; `pasta-async serve` does all this

docs/serving.md has the rest.
"""

from pasta_async.server.app import create_app
from pasta_async.server.replies import event_fields
from pasta_async.server.running import uvicorn_server
from pasta_async.server.settings import ServerSettings

__all__ = [
    "ServerSettings",
    "create_app",
    "event_fields",
    "uvicorn_server",
]
