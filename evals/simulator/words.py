"""A model's own tokenizer for a simulated engine, so that lengths are those of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pasta_async.backends.tokenization import TextCodec
    from pasta_async.protocol import TagIds

__all__ = ["CodecTokenizer"]


class CodecTokenizer:
    """The tokenizer of a model folder, in the form that scripted and simulated backends take.

    The text of a token that is less than a character is a replacement character: what is simulated is time.

    Args:
        codec: The tokenizer; its tags have to be in its vocabulary.

    Raises:
        UnsupportedModelError: They are not, or it has no end-of-text token.
    """

    def __init__(self, codec: TextCodec) -> None:
        if codec.tags is None or not codec.end_ids:
            raise UnsupportedModelError("this tokenizer lacks the tags, or an end-of-text token")
        self._codec = codec
        self.vocab_size: int = codec.vocab_size
        self.end_id: int = codec.end_ids[0]
        self.tags: TagIds | None = codec.tags

    @classmethod
    def from_folder(cls, folder: str | Path) -> CodecTokenizer:
        """Read a model folder's tokenizer."""
        from pasta_async.backends.tokenization import TextCodec  # needs the extra `local`

        return cls(TextCodec.from_folder(folder))

    def encode(self, text: str) -> list[int]:
        """Encode text as data."""
        return self._codec.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return self._codec.detokenize(ids)
