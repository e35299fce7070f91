"""Stage 1, supervised finetuning: `python -m pasta_async.training.sft`, or the same behind `torchrun`.

A checkpoint folder of Llama, Qwen2 or Qwen3 and annotated answers become a model that writes PASTA-LANG.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from pasta_async.cli.command import Command, command
from pasta_async.errors import InvalidRequestError, PastaError
from pasta_async.lang import parse
from pasta_async.training.data.corpus import Record, read_records
from pasta_async.training.model import ModelCodec
from pasta_async.training.trainer import Task, TrainerSettings, train
from pasta_async.training.views import Trie, align, pack_plain, pack_views, recount


class SftSettings(TrainerSettings):
    """Settings of stage 1."""

    data: tuple[Path, ...] = Field(min_length=1, description="files of annotated answers, JSON lines")
    form: Literal["pasta", "plain", "both"] = Field(
        default="pasta",
        description="annotated answers, the same without tags (the baseline), or both in one model",
    )
    plain_every: int = Field(
        default=1, ge=1, description="of form both: every so many answers are also learned without tags"
    )
    estimates: Literal["recount", "keep", "none"] = Field(
        default="recount",
        description="token estimates: counted with this model's tokenizer, as they are, or none, which makes "
        "promises about three tokens shorter",
    )
    chat_template: Path | None = Field(default=None, description="file of one to use instead of the model's")


class Supervised(Task):
    """Annotated answers; an update minimises the cross-entropy of their targets.

    `form`, `plain_every` and `estimates` are those of `SftSettings`.
    """

    def __init__(
        self, records: Sequence[Record], codec: ModelCodec, form: str, estimates: str, plain_every: int = 1
    ) -> None:
        self._codec = codec
        self._estimates = estimates
        tagged = [] if form == "plain" else [(record, True) for record in records]
        every = plain_every if form == "both" else 1
        plain = [] if form == "pasta" else [(record, False) for record in records[::every]]
        self._examples = tagged + plain
        digest = hashlib.sha256(repr((form, plain_every, estimates)).encode())
        for record in records:
            digest.update(json.dumps([record.id, record.messages, record.written]).encode())
        self.fingerprint: str = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._examples)

    def example(self, index: int) -> Trie:
        """An answer as a trie, with its tags or plain.

        Raises:
            InvalidRequestError: Its prompt does not fit the chat template, or the answer is malformed.
        """
        record, pasta = self._examples[index]
        try:
            document = align(self._codec, parse(record.written, strict=True))
            prompt = self._codec.prompt(record.messages, pasta)
        except PastaError as error:
            raise InvalidRequestError(f"{record.id}: {error}") from error
        if self._estimates != "keep":
            document = recount(document, self._codec.count if self._estimates == "recount" else None)
        pack = pack_views if pasta else pack_plain
        return pack(self._codec, prompt, document)


def sft(settings: SftSettings) -> bool:
    """Run stage 1; see `pasta_async.training.trainer.train`, whose errors it raises."""
    records = [record for path in settings.data for record in read_records(path)]
    return train(
        settings,
        lambda codec: Supervised(records, codec, settings.form, settings.estimates, settings.plain_every),
        template=settings.chat_template,
        both=settings.form == "both",
    )


main: Command = command(SftSettings, sft, "pasta_async.training.sft", __doc__, resumes=True)

if __name__ == "__main__":
    main()
