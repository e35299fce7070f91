"""Settings from the environment: `PASTA_BACKEND` and its like."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from pasta_async.backends import backend_names
from pasta_async.errors import InvalidRequestError
from pasta_async.limits import Limits

__all__ = ["Settings"]


class Settings(BaseSettings):
    """What holds where the code says nothing; each field is read from `PASTA_<NAME>`."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix="PASTA_", frozen=True)

    def __init__(self) -> None:
        try:
            super().__init__()
        except ValidationError as error:
            told = (
                f"PASTA_{e['loc'][0]}".upper() + f": {e['msg']}" for e in error.errors(include_input=False)
            )
            raise InvalidRequestError(f"settings from the environment: {'; '.join(told)}") from None

    backend: str = "local:"
    """`local:`, `local:/path`, `http://host:30000` or `sglang:/path`; or several, with commas between."""
    api_key: SecretStr | None = None
    """Sent to an HTTP backend as a bearer token."""
    max_threads: int = Field(default=16, ge=1)
    client_threads: int = Field(default=64, ge=1)
    chunk_tokens: int | None = Field(default=None, ge=1)
    prompt_tokens: int | None = Field(default=None, ge=1)
    timeout: float | None = Field(default=None, gt=0)
    retries: int = Field(default=1, ge=0)
    on_failure: Literal["fail", "sequence"] = "fail"

    @property
    def backends(self) -> list[str]:
        """The backends that `backend` names."""
        return backend_names(self.backend)

    @property
    def limits(self) -> Limits:
        """The limits these settings give."""
        return Limits(
            chunk_tokens=self.chunk_tokens,
            prompt_tokens=self.prompt_tokens,
            max_threads=self.max_threads,
            client_threads=self.client_threads,
            timeout=self.timeout,
            retries=self.retries,
            on_failure=self.on_failure,
        )
