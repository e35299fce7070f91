"""Options: sampling, limits, those of an answer, and the settings of the environment.

A bad value raises an `InvalidRequestError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import Repr
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypedDict

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from pasta_async.errors import InvalidRequestError

Parallel = Literal["always", "auto", "never", "outline"]
"""The width of an answer. `always`: full, whatever the load. `auto`: by the load. `never`: one thread at a
time. `outline`: by the load, and the items of an untrained model's lists are threads."""

_shown = Repr()
_shown.maxstring = _shown.maxother = 80


class Options(BaseModel):
    """Frozen values; unknown fields and bad values raise `InvalidRequestError`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            complaints = (
                f"{self._field_label(e['loc'])}: {e['msg']} (got {self._shown_value(e['loc'], e['input'])})"
                for e in error.errors(include_url=False)
            )
            # pydantic's error would show every value again, secret ones too.
            raise InvalidRequestError(f"{type(self).__name__}: {'; '.join(complaints)}") from None

    @classmethod
    def of(cls, value: Self | Mapping[str, Any] | None) -> Self:
        """The value itself, one made of a mapping's fields, or the defaults.

        Raises:
            InvalidRequestError: It is something else, or a field is bad.
        """
        if isinstance(value, cls):
            return value
        if value is None:
            return cls()
        if not isinstance(value, Mapping):
            raise InvalidRequestError(
                f"{cls.__name__}: this, or a mapping of its fields, not {_shown.repr(value)}"
            )
        return cls(**{str(name): field for name, field in value.items()})

    @classmethod
    def _field_label(cls, path: tuple[int | str, ...]) -> str:
        return ".".join(map(str, path))

    @staticmethod
    def _shown_value(path: tuple[int | str, ...], value: Any) -> str:
        return "a secret" if "key" in str(path[0]) else _shown.repr(value)


if TYPE_CHECKING:
    StopTexts = str | Sequence[str]
else:
    StopTexts = Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...],
        Field(max_length=64),
        BeforeValidator(lambda stop: (stop,) if isinstance(stop, str) else stop),
    ]


class Sampling(Options):
    """The choice of the next token, and the end of the answer. Unknown fields are refused."""

    temperature: Annotated[
        float,
        Field(ge=0.0, le=10.0, allow_inf_nan=False),
        AfterValidator(lambda temperature: temperature if temperature >= 1e-6 else 0.0),
    ] = 0.0
    """0 is greedy, and so is anything below 1e-6."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Keep the smallest set of tokens whose probability reaches this."""
    top_k: int | None = Field(default=None, ge=1, lt=2**31)  # SGLang ends at one that 32 bits do not hold
    """Keep the k likeliest tokens."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Keep tokens at least this likely, relative to the likeliest."""
    # Logits that are divided by less than 0.01 could overflow.
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=2.0)
    """Above 1, tokens that the context already holds get less likely: a positive logit is divided by it, a
    negative one multiplied (CTRL, arXiv 1909.05858). None: the value in the model's `generation_config.json`,
    on SGLang where the server was told (docs/backends.md); else 1, which changes nothing."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Seed of the answer; every thread derives its own from it. An answer with a seed keeps its tags whatever
    the load, so that it repeats."""
    stop: StopTexts = ()
    """Texts that end the answer when they appear in its visible text: one, or up to 64, of at most 1,000
    characters each. It is read as a tuple."""
    max_tokens: int = Field(default=16_384, ge=1)
    """Tokens of the whole answer, tags counted, in document order: main's up to a promise, its chunk's,
    main's behind it. It is cut where the same answer in sequence would be; one that fits is never shortened.
    `Limits.total_tokens` bounds all that is generated."""


class Limits(Options):
    """Limits of an answer, and of the client it runs on. Unknown fields are refused.

    Threads above a limit queue; they are never dropped, and what they write does not depend on when they run.
    The length of an answer is limited by `Sampling.max_tokens`.
    """

    max_threads: int = Field(default=16, ge=1)
    """Threads of one answer that decode at once, the main thread counted."""
    client_threads: int = Field(default=64, ge=1)
    """Threads over all answers of a client that decode at once."""
    chunk_tokens: int | None = Field(default=None, ge=1)
    """Cap of a chunk in tokens; None: 4 x the promise's estimate + 64, or 512 without an estimate."""
    total_tokens: int | None = Field(default=None, ge=1)
    """Tokens that all threads of an answer may generate together, for those who pay by the token. Tokens
    that are decoded behind `max_tokens`, before that is known, count too. Where this limit ends an answer
    (`finish_reason` is then "length") depends on timing. A plan is fitted to it as to `max_tokens`; a failed
    request is not sent again where too few are left for it."""
    prompt_tokens: int | None = Field(default=None, ge=1)
    """Tokens of the prompt; None: what the model's context holds."""
    timeout: float | None = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Seconds for the whole answer: connecting (and loading a local model, unless `Client.connect` did that
    before), waiting for its turn, encoding, decoding, retries. None: no limit."""
    retries: int = Field(default=2, ge=0, le=100)
    """Number of times that a thread's request is sent again after a failure that may pass, from where it
    broke off: within 0.25 s, twice that with each try, or after the time that the server said. Connecting is
    retried likewise. Time-outs are final."""

    def over(self, base: Limits) -> Limits:
        """These limits laid over others: fields that were set here, and all other fields of `base`."""
        return base.model_copy(update=self.model_dump(exclude_unset=True))

    def chunk_cap(self, estimate: int | None) -> int:
        """Tokens that a chunk may have, given its promise's estimate."""
        if self.chunk_tokens is not None:
            return self.chunk_tokens
        return 512 if estimate is None else 4 * estimate + 64


class FillOptions(TypedDict, total=False):
    """Options of `Client.fill`, given by name.

    The fields of `Sampling` can be given directly; they are laid over `sampling`. None leaves one as it is.
    """

    sampling: Sampling | Mapping[str, Any] | None
    """Greedy unless given; a mapping of its fields will do. In the typed fields of a plan
    `repetition_penalty` is 1 unless given: JSON repeats itself."""
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | None
    """Each thread, or hole of a plan, derives its own seed from it."""
    max_tokens: int | None
    """Tokens of the whole answer. Of a plan: tokens of all holes together; what nothing bounds shares the
    tokens that the rest leaves, a plan that may need more is refused, and None is the sum of the holes' own
    limits."""
    limits: Limits | Mapping[str, Any] | None
    """Limits of this answer or plan, laid over the client's (`client_threads` is always the client's)."""
    parallel: Parallel
    """`auto` (default): as parallel as the engine has room for, without any tag where it has none
    (docs/interpreter.md). `always`: whatever the load. `never`: the same views one after another, which is a
    test aid and not the baseline. `outline`: as `auto`; a model that was not trained writes the items of its
    lists in parallel (docs/plans.md#outlines). The load does not limit a plan: all but `never` write as many
    fields at once as `Limits` allow, and its text depends on none of them."""
    chat_template_kwargs: Mapping[str, Any] | None
    """Passed to the model's chat template."""


class AnswerOptions(FillOptions, total=False):
    """Options of an answer, given by name beside the prompt: those of `FillOptions`, and two more."""

    stop: str | Sequence[str] | None
    """See `Sampling`; one text will do."""
    baseline: bool
    """Answer without any tag, for comparison. Default: False."""


class Settings(Limits, BaseSettings):
    """Defaults from the environment, limits among them: each field is read from `PASTA_<NAME>`."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(  # pyright: ignore[reportIncompatibleVariableOverride]
        env_prefix="PASTA_", env_ignore_empty=True, frozen=True
    )

    backend: str = "local:"
    """`local:`, `local:qwen-1.5b`, `local:/path`, `http://host:30000`, `vllm:http://host:8000` or
    `sglang:/path`."""
    api_key: SecretStr | None = None
    """Sent to an HTTP backend as a bearer token."""
    tokenizer: str | None = None
    """The tokenizer of an HTTP backend's model: a folder, a `tokenizer.json` or a name on the hub."""

    @classmethod
    def _field_label(cls, path: tuple[int | str, ...]) -> str:
        return f"PASTA_{path[0]}".upper()

    @property
    def limits(self) -> Limits:
        """The limits in these settings; only those that the environment names count as set."""
        return Limits(**self.model_dump(include=self.model_fields_set & set(Limits.model_fields)))
