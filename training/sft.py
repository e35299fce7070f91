"""Stage 1, supervised finetuning: `python -m pasta_async.training.sft`, or the same behind `torchrun`.

A checkpoint folder of Llama, Qwen2 or Qwen3 and annotated answers become a model that writes PASTA-LANG.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, FilePath

from pasta_async.cli.command import Command, command
from pasta_async.errors import InvalidRequestError, PastaError
from pasta_async.lang import parse
from pasta_async.training.data.corpus import Record, read_records
from pasta_async.training.trainer import Task, TrainerSettings, train
from pasta_async.training.views import Codec, Trie, pack_plain, pack_views, with_estimates


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
    estimates: Literal["recount", "none"] = Field(
        default="recount",
        description="token estimates: counted with this model's tokenizer, or none, which makes promises "
        "about three tokens shorter",
    )
    chat_template: FilePath | None = Field(
        default=None, description="file of one to use instead of the model's"
    )


def supervised(records: Sequence[Record], codec: Codec, settings: SftSettings) -> Task:
    """Annotated answers with their tags, plain, or both; an update minimises the targets' cross-entropy."""
    tagged = [] if settings.form == "plain" else [(record, True) for record in records]
    every = settings.plain_every if settings.form == "both" else 1
    plain = [] if settings.form == "pasta" else [(record, False) for record in records[::every]]
    examples = tagged + plain
    count = codec.count if settings.estimates == "recount" else None

    def example(number: int) -> Trie:
        record, pasta = examples[number]
        if not record.written.strip():
            raise InvalidRequestError(f"{record.id} has no answer")
        try:
            document = with_estimates(parse(record.written, strict=True), count)
            prompt = codec.prompt(record.messages, pasta)
        except PastaError as error:
            raise InvalidRequestError(f"{record.id}: {error}") from error
        pack = pack_views if pasta else pack_plain
        return pack(codec, prompt, document)

    return Task(len(examples), example, lambda trie: len(trie.targets))


def sft(settings: SftSettings) -> bool:
    """Run stage 1; see `pasta_async.training.trainer.train`, whose errors it raises."""
    records = [record for path in settings.data for record in read_records(path)]
    return train(
        settings,
        lambda codec: supervised(records, codec, settings),
        template=settings.chat_template,
        both=settings.form == "both",
    )


main: Command = command(SftSettings, sft, "pasta_async.training.sft", __doc__, resumes=True)

if __name__ == "__main__":
    main()
