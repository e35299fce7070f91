"""How the server is set up: `ServerSettings`, from code, the environment and the command line."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from pasta_async.errors import InvalidRequestError
from pasta_async.options import Options, Parallel


def _listed(value: Any) -> Any:
    """Environment variables hold lists with commas between the items."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    return value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
_Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_listed)]


class ServerSettings(Options, BaseSettings):
    """What holds for every request of a server; each field is also read from `PASTA_SERVER_<NAME>`.

    Limits of a single answer's threads are the `Client`'s.

    Raises:
        InvalidRequestError: A value is out of range, or a field unknown.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(  # pyright: ignore[reportIncompatibleVariableOverride]
        env_prefix="PASTA_SERVER_", frozen=True
    )

    def __init__(self, **values: Any) -> None:  # lists may be given as texts, secrets too
        super().__init__(**values)

    host: str = "127.0.0.1"
    """Address to listen at. Any but a loopback address needs a key."""
    port: int = Field(default=8000, ge=0, le=65535)
    """0: a free one."""
    api_keys: _Secrets = ()
    """Whoever asks must send one of these as a bearer token; none: everybody may ask."""
    api_keys_file: Path | None = None
    """A file of keys, one on each line; empty lines and those that begin with # count for nothing.
    `PASTA_SERVER_API_KEYS` has some too."""
    cors_origins: Names = ()
    """Origins whose pages may ask, `https://app.example` for instance; `*` is every page there is."""
    model_names: Names = ()
    """Names that requests may call the model by, beside its own."""
    temperature: float = Field(default=1.0, ge=0, le=10)
    """For requests that name none; 1 is OpenAI's default."""
    parallel: Parallel = "auto"
    """How parallel answers may be whose request does not say: `always`, `never`, or `auto`, by the load."""
    max_answers: int = Field(default=64, ge=1)
    """Answers that decode at once."""
    max_queue: int = Field(default=256, ge=0)
    """Answers that wait for their turn; more are refused with 429."""
    queue_timeout: float = Field(default=60.0, gt=0)
    """Seconds an answer waits for its turn before it is refused with 429."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds an answer may take; a request may ask for less."""
    max_choices: int = Field(default=16, ge=1)
    """Answers that one request may ask for (`n`, or several prompts)."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens that a request may ask for; default: what the model's context holds."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Tokens of a prompt; default: what the model's context holds."""
    max_body_bytes: int = Field(default=4 * 2**20, ge=1)
    """Bytes of a request's body."""
    body_timeout: float = Field(default=30.0, gt=0)
    """Seconds the head of a request may take to arrive, and its body."""
    stall_timeout: float = Field(default=60.0, gt=0)
    """Seconds a client may take nothing of what is sent to it, once buffers are full."""
    ping_seconds: float = Field(default=15.0, ge=0)
    """Silent seconds of a stream after which a comment keeps its connection alive; 0: never."""
    drain_seconds: float = Field(default=30.0, ge=1)
    """Seconds that open answers have to end after SIGTERM before they are cancelled."""
    log_text: bool = False
    """Whether prompts, answers and what an engine said of them may appear in logs and traces."""
    log_format: Literal["text", "json"] = "text"
    """Lines to read, or JSON lines."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """From `debug` on, logs tell of threads and requests too."""
    otel: bool | None = None
    """Whether traces go out over OTLP, as the `OTEL_*` variables say; default: if they name an endpoint."""

    def keys(self) -> tuple[str, ...]:
        """All keys, those in the file too.

        Raises:
            InvalidRequestError: The file cannot be read, or holds no key.
        """
        keys = [key.get_secret_value() for key in self.api_keys]
        if path := self.api_keys_file:
            try:
                lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidRequestError(f"the file of keys cannot be read: {error}") from error
            found = [line for line in lines if line and not line.startswith("#")]
            if not found:
                raise InvalidRequestError(f"{path} holds no key; put one on a line of its own")
            keys += found
        return tuple(keys)

    @property
    def traced(self) -> bool:
        """Whether traces go out."""
        where = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        return any(map(os.environ.get, where)) if self.otel is None else self.otel

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
