"""The tokenizer of the shipped model: words, syllables, numbers, and bytes for everything else.

Each word of the task is one token, a name is cut into syllables, a number into groups of at most two digits.
A space belongs to the small word or number behind it, and is a token of its own before a capital, so that a
name has the same tokens wherever it stands. Every byte is a token, hence any text comes back as it went in.
"""

# torch, transformers and tokenizers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from pasta_async.jobs import write_json
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.training.synthetic import FAMILIES, sample, templates
from pasta_async.training.synthetic.families import SYLLABLES, WORDS

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
SYSTEM, USER, ASSISTANT, PLAIN = "<|system|>", "<|user|>", "<|assistant|>", "<|plain|>"
"""A turn is a role, its text, and `END`. `ASSISTANT` asks for PASTA-LANG, `PLAIN` for text without tags."""
SPECIAL = (PAD, BEGIN, END, SYSTEM, USER, ASSISTANT, PLAIN)
"""Their ids are their places."""

CHAT_TEMPLATE = (
    "{{- '<|begin|>' -}}"
    "{%- for message in messages -%}"
    "{%- set role = message['role'] if message['role'] in ['system', 'user'] else 'plain' -%}"
    "{{- '<|' + role + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|assistant|>' if pasta is not defined or pasta else '<|plain|>' -}}"
    "{%- endif -%}"
)
"""`pasta=false` asks for the plain baseline; answers in the history are plain text."""

_SAMPLES = 300  # training examples of each family
_PIECES = r" ?\p{Ll}{1,24}|\p{Lu}\p{Ll}{0,24}| ?\p{N}{1,2}|[\s\S]"
_WORDS = re.compile(r" ?[a-z]+|[A-Z][a-z]*|[^\w\s]")


def build_tokenizer() -> Tokenizer:
    """Build the tokenizer from the templates and some training examples of each family."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    syllables = [form for s in SYLLABLES for form in (s, s.capitalize())]
    numbers = [f"{space}{n}" for space in ("", "Ġ") for n in range(10, 100)] + [f"Ġ{n}" for n in range(10)]
    words = [word.replace(" ", "Ġ") for word in _task_words()]
    tokens = dict.fromkeys([*SPECIAL, *TAG_TOKENS, *alphabet, *numbers, *syllables, *words])
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = models.WordPiece(
        vocabulary, unk_token=PAD, max_input_chars_per_word=200, continuing_subword_prefix=""
    )
    tokenizer = Tokenizer(model)
    pieces = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    special = (*SPECIAL, *TAG_TOKENS)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return tokenizer


def _task_words() -> list[str]:
    """Words of the training split, without names, the most frequent first."""
    counts: Counter[str] = Counter()
    for family in FAMILIES:
        examples = [sample(family, seed) for seed in range(_SAMPLES)]
        wordings = [f"{template.frame} {template.fact}" for template in templates(family, "train")]
        texts = [text for example in examples for text in (example.prompt, example.document.text)]
        texts += [re.sub(r"\{\w+\}", "", wording) for wording in wordings]
        texts += [" ".join((*WORDS["openings"], *WORDS["closings"]))]
        names = {name for example in examples for name in example.names}
        counts.update(word for text in texts for word in _WORDS.findall(text) if word not in names)
    return [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context_length: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [SYSTEM, USER, ASSISTANT, PLAIN, *TAG_TOKENS],
        "clean_up_tokenization_spaces": False,
        "spaces_between_special_tokens": False,
        "model_max_length": context_length,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(folder / "tokenizer_config.json", config)
