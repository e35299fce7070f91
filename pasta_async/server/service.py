"""What the endpoints of a server share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request

    from pasta_async.client import Client
    from pasta_async.limits import Limits
    from pasta_async.protocol import ModelInfo
    from pasta_async.server.admission import Admission
    from pasta_async.server.settings import ServerSettings

__all__ = ["Service", "service_of"]


@dataclass(frozen=True)
class Service:
    """A connected client, and who may use it when. `request.app.state.service` of a running app."""

    client: Client
    info: ModelInfo
    settings: ServerSettings
    admission: Admission

    @property
    def limits(self) -> Limits:
        """Limits of an answer that asks for none of its own."""
        own, settings = self.client.limits, self.settings
        timeout = settings.timeout
        if own.timeout is not None and "timeout" in own.model_fields_set:
            timeout = min(own.timeout, timeout)
        prompt = settings.max_prompt_tokens or own.prompt_tokens
        return own.model_copy(update={"timeout": timeout, "prompt_tokens": prompt})


def service_of(request: Request) -> Service:
    """The service of the app that a request came to."""
    return request.app.state.service
