"""Answers by the semantics of views: main decodes to its sync, chunks from forked contexts, then they join.

Works on many answers at once, in rounds: every main to its next sync or end, then every chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pasta_async.lang.document import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    SYNC,
    TAG_TOKENS,
)
from pasta_async.training.decoding import greedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import LlamaForCausalLM

    from pasta_async.training.tokenizer import Codec

__all__ = ["Answer", "decode_pasta", "decode_plain"]

MAIN_LIMIT, CHUNK_LIMIT, PLAIN_LIMIT = 256, 128, 400
"""Tokens of a stretch of main, of a chunk, of a plain answer."""


@dataclass(slots=True)
class Answer:
    """A decoded answer."""

    prompt: list[int]
    written: list[int] = field(default_factory=list[int])
    """The written form, as ids."""
    visible: list[int] = field(default_factory=list[int])
    """What main sees; differs from `written` only where chunks are hidden."""
    well_formed: bool = True
    done: bool = False
    critical: int = 0
    """Tokens on the critical path."""
    generated: int = 0
    chunks: int = 0


@dataclass(slots=True)
class _Thread:
    answer: Answer
    position: int
    """Where in main's stretch its promise ends."""
    context: list[int]
    output: list[int] = field(default_factory=list[int])


def decode_plain(model: LlamaForCausalLM, codec: Codec, prompts: Sequence[str]) -> list[Answer]:
    """The baseline's answers."""
    answers = [Answer(codec.prompt(prompt, pasta=False)) for prompt in prompts]
    outputs = greedy(model, [answer.prompt for answer in answers], {codec.end}, PLAIN_LIMIT)
    tags = {codec.special(tag) for tag in TAG_TOKENS}
    for answer, output in zip(answers, outputs, strict=True):
        answer.generated = answer.critical = len(output)
        answer.well_formed = output[-1] == codec.end and not tags.intersection(output)
        answer.written = [token for token in output if token != codec.end]
    return answers


def decode_pasta(
    model: LlamaForCausalLM,
    codec: Codec,
    prompts: Sequence[str],
    hide_chunks: bool = False,
    forced_mains: Sequence[Sequence[int]] | None = None,
) -> list[Answer]:
    """Answers in PASTA-LANG.

    Args:
        model: The model.
        codec: Its tokenizer.
        prompts: What users typed.
        hide_chunks: An ablation: main goes on behind a sync without seeing the chunks.
        forced_mains: An ablation: what main writes is given, and only the chunks are decoded.
    """
    answers = [Answer(codec.prompt(prompt, pasta=True)) for prompt in prompts]
    for _ in range(8):
        live = [answer for answer in answers if not answer.done]
        if not live:
            break
        if forced_mains is None:
            contexts = [answer.prompt + answer.visible for answer in live]
            mains = greedy(model, contexts, {codec.end, codec.special(SYNC)}, MAIN_LIMIT)
        else:
            mains = [list(main) for main in forced_mains]
        _round(model, codec, live, mains, hide_chunks)
    for answer in answers:
        answer.well_formed &= answer.done
    return answers


def _round(
    model: LlamaForCausalLM,
    codec: Codec,
    answers: Sequence[Answer],
    mains: Sequence[list[int]],
    hide_chunks: bool,
) -> None:
    """Decode the chunks that mains promise, and join them."""
    opened = codec.special(ASYNC_OPEN)
    threads: list[_Thread] = []
    for answer, main in zip(answers, mains, strict=True):
        promises = _promise_ends(codec, main)
        answer.well_formed &= promises is not None
        threads += [
            _Thread(answer, end, [*answer.prompt, *answer.visible, *main[:end], opened])
            for end in promises or ()
        ]
    close = codec.special(ASYNC_CLOSE)
    outputs = greedy(model, [thread.context for thread in threads], {close, codec.end}, CHUNK_LIMIT)
    for thread, output in zip(threads, outputs, strict=True):
        thread.output = output
        body = output[:-1] if output[-1] in (close, codec.end) else output
        inner = {codec.special(tag) for tag in TAG_TOKENS}.intersection(body)
        thread.answer.well_formed &= output[-1] == close and not inner
    for answer, main in zip(answers, mains, strict=True):
        _join(codec, answer, main, [thread for thread in threads if thread.answer is answer], hide_chunks)


def _join(codec: Codec, answer: Answer, main: list[int], threads: Sequence[_Thread], hide: bool) -> None:
    written: list[int] = []
    start = 0
    for thread in threads:
        closed = (
            thread.output
            if thread.output[-1] == codec.special(ASYNC_CLOSE)
            else [
                *thread.output,
                codec.special(ASYNC_CLOSE),
            ]
        )
        written += [*main[start : thread.position], codec.special(ASYNC_OPEN), *closed]
        start = thread.position
    written += main[start:]
    answer.done = main[-1] == codec.end
    answer.written += [token for token in written if token != codec.end]
    answer.visible += main if hide else written
    paths = [len(main), *(thread.position + len(thread.output) for thread in threads)]
    answer.critical += max(paths)
    answer.generated += len(main) + sum(len(thread.output) for thread in threads)
    answer.chunks += len(threads)
    answer.well_formed &= main[-1] in (codec.end, codec.special(SYNC))
    answer.well_formed &= answer.done or bool(threads)


def _promise_ends(codec: Codec, main: Sequence[int]) -> list[int] | None:
    """Where promises end in a stretch of main; None if a tag of it is malformed."""
    tags = {codec.special(tag): tag for tag in TAG_TOKENS}
    found = [(place, tags[token]) for place, token in enumerate(main) if token in tags]
    if found and found[-1][1] == SYNC:
        found.pop()
    ends: list[int] = []
    for start in range(0, len(found), 3):
        triple = found[start : start + 3]
        if [tag for _, tag in triple] != list(TAG_TOKENS[:3]):
            return None
        (opens, _), (middle, _), (closes, _) = triple
        topic = codec.decode(list(main[opens + 1 : middle]))
        tokens = codec.decode(list(main[middle + 1 : closes]))
        if not 1 <= len(topic.split()) <= 3 or not tokens.isdigit() or int(tokens) % 10 or int(tokens) < 10:
            return None
        ends.append(closes + 1)
    return ends
