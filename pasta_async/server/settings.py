"""Settings of a server: from code, the environment and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from pasta_async.errors import InvalidRequestError
from pasta_async.options import Options, Parallel


def _split(value: Any) -> Any:
    """Environment variables hold lists with commas between the items."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    return value


_Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
_Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split)]


class ServerSettings(Options, BaseSettings):
    """Settings that hold for every request; each field is also read from `PASTA_SERVER_<NAME>`.

    A variable that is empty counts as absent. What limits a single answer is in `Limits`.

    Raises:
        InvalidRequestError: A value is out of range, or a field unknown.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(  # pyright: ignore[reportIncompatibleVariableOverride]
        env_prefix="PASTA_SERVER_", env_ignore_empty=True, frozen=True
    )

    def __init__(self, **values: Any) -> None:  # for type checkers: lists may be given as texts, secrets too
        super().__init__(**values)

    host: str = "127.0.0.1"
    """Address to listen at. Any but localhost, 127.0.0.1 and ::1 needs a key."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen at; 0: a free one."""
    api_keys: _Secrets = ()
    """Bearer tokens, one of which a request must send; none: no key is needed."""
    api_keys_file: Path | None = None
    """A file of keys, one on each line; empty lines and lines that begin with # are skipped.
    Keys in `PASTA_SERVER_API_KEYS` count as well."""
    model_names: _Names = ()
    """Names for the model beside its own."""
    temperature: float = Field(default=1.0, ge=0, le=10)
    """Temperature of requests that name none; 1 is OpenAI's default."""
    parallel: Parallel = "auto"
    """Width of answers whose request names none: `always`, `never`, or `auto`, by the load; or
    `outline`, which also writes lists of untrained models in parallel."""
    max_answers: int = Field(default=64, ge=1)
    """Requests that decode at once."""
    max_queue: int = Field(default=256, ge=0)
    """Requests that wait for their turn; more are refused with 429."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens that a request may ask for, and has if it asks for none."""
    max_body_bytes: int = Field(default=4 * 2**20, ge=1)
    """Bytes of a request's body."""
    body_timeout: float = Field(default=30.0, gt=0)
    """Seconds the head of a request may take to arrive, and its body."""
    stall_timeout: float = Field(default=60.0, gt=0)
    """Seconds for which a client may read no byte of its reply, once buffers are full."""
    drain_seconds: int = Field(default=30, ge=1)
    """Whole seconds that open answers have to end after SIGTERM before they are cancelled."""
    log_text: bool = False
    """Log prompts, answers and error messages of the engine."""
    log_format: Literal["text", "json"] = "text"
    """Lines to read, or JSON lines."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is logged; `debug` adds threads and requests."""

    def keys(self) -> tuple[str, ...]:
        """All keys, with those in the file.

        Raises:
            InvalidRequestError: The file cannot be read, or holds no key; or a key is empty.
        """
        keys = [key.get_secret_value() for key in self.api_keys]
        if path := self.api_keys_file:
            try:
                lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidRequestError(f"the file of keys cannot be read: {error}") from error
            keys_of_file = [line for line in lines if line and not line.startswith("#")]
            if not keys_of_file:
                raise InvalidRequestError(f"{path} holds no key; put one on a line of its own")
            keys += keys_of_file
        if not all(key.strip() for key in keys):
            raise InvalidRequestError("an API key is empty: it would keep nobody out")
        return tuple(keys)
