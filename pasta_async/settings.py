"""Settings from the environment: `PASTA_BACKEND` and its like."""

from __future__ import annotations

from typing import ClassVar

from pydantic import SecretStr  # noqa: TC002 - pydantic needs it at run time
from pydantic_settings import BaseSettings, SettingsConfigDict

from pasta_async.backends import backend_names
from pasta_async.limits import Limits

__all__ = ["Settings"]


class Settings(Limits, BaseSettings):
    """What holds where the code says nothing, limits and all; each field is read from `PASTA_<NAME>`."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(  # pyright: ignore[reportIncompatibleVariableOverride]
        env_prefix="PASTA_", frozen=True
    )

    backend: str = "local:"
    """`local:`, `local:/path`, `http://host:30000` or `sglang:/path`; or several, with commas between."""
    api_key: SecretStr | None = None
    """Sent to an HTTP backend as a bearer token."""

    def __init__(self) -> None:
        super().__init__()

    @classmethod
    def _field_label(cls, path: tuple[int | str, ...]) -> str:
        return f"PASTA_{path[0]}".upper()

    @property
    def backends(self) -> list[str]:
        """The backends that `backend` names."""
        return backend_names(self.backend)

    @property
    def limits(self) -> Limits:
        """The limits these settings give; those that the environment names count as set."""
        return Limits(**self.model_dump(include=self.model_fields_set & set(Limits.model_fields)))
