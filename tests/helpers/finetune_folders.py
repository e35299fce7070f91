"""Base models and annotated answers, small and as real files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pasta_async.training.data.corpus import Record, write_records
from pasta_async.training.model import ModelMaker, write_tokenizer
from pasta_async.training.views import Codec
from tests.helpers import local_models

ANSWERS = (
    # several rounds, adjacent promises, text behind the last one
    'Both: <promise topic="causes" tokens="10"/><async>The causes were many.</async>'
    '<promise topic="outcome" tokens="20"/><async>The outcome was one.</async><sync/> So it was; '
    '<promise topic="rest" tokens="10"/><async>the rest</async> is known.<sync/> The end.',
    # an empty chunk, one in the first place, a round without text
    '<promise topic="a" tokens="10"/><async></async><promise topic="b" tokens="10"/><async>b</async><sync/>'
    '<promise topic="c" tokens="10"/><async></async>',
    "One outcome, no promise.",
    r'A literal <\sync/> and a <promise topic="causes" tokens="10"/><async>line\n</async> of 漢字.',
    'First. <promise topic="x" tokens="10"/><async>x is many, and x is one</async>',
)


def base_folder(folder: Path, kind: str = "llama", tags: bool = False, **changes: Any) -> Path:
    """A model folder that does not know the tags: byte-level tokenizer, ChatML, untied head."""
    tokenizer: Any = local_models.byte_level(tags=tags)
    shape: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False}
    model = local_models.model(kind, vocabulary=len(tokenizer), **{**shape, **changes})
    return local_models.save(folder, model, tokenizer)


def tagged(base: Path, out: Path, lora_rank: int = 0, **options: Any) -> tuple[ModelMaker, Codec]:
    """Write the tokenizer of a model folder with the tags to `out`; `options` are `write_tokenizer`'s."""
    write_tokenizer(base, out, **options)
    codec = Codec(out)
    return ModelMaker(base, codec.tag_ids, lora_rank), codec


def data_file(path: Path, copies: int = 1) -> Path:
    """Records of `ANSWERS`."""
    records = [
        Record(
            id=f"{copy}-{number}", messages=({"role": "user", "content": f"Tell {copy}"},), written=written
        )
        for copy in range(copies)
        for number, written in enumerate(ANSWERS)
    ]
    write_records(path, records)
    return path
