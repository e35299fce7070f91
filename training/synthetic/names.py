"""Names nobody has seen: an open vocabulary made of syllables."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

__all__ = ["SYLLABLES", "is_held_out", "make_name", "make_names"]

_ONSETS = "b c d f g h j k l m n p r s t v w y z br ch dr gr kr pl sh st tr".split()
_VOWELS = "aeiou"
_CODAS = "bdklmnprst"
SYLLABLES: tuple[str, ...] = tuple(onset + vowel for onset in _ONSETS for vowel in _VOWELS)
"""Open syllables, each one token (small and capitalised) of the shipped model."""


def is_held_out(name: str) -> bool:
    """Whether a name is kept away from training: one combination of syllables in ten, by its checksum."""
    return zlib.crc32(name.encode()) % 10 == 0


def make_name(rng: random.Random, held_out: bool) -> str:
    """Make a name, such as "Kelora", from the training names or from the held-out ones."""
    while True:
        name = (_regular(rng) if rng.random() < 0.75 else _rough(rng)).capitalize()
        if is_held_out(name) == held_out and len(name) >= 3:
            return name


def make_names(rng: random.Random, count: int, held_out: bool) -> list[str]:
    """Make `count` names that start differently, so that no name can be mistaken for another."""
    names: list[str] = []
    while len(names) < count:
        name = make_name(rng, held_out)
        if all(name[:2] != other[:2] for other in names):
            names.append(name)
    return names


def _regular(rng: random.Random) -> str:
    syllables = [rng.choice(SYLLABLES) for _ in range(rng.choice((2, 2, 3)))]
    return "".join(syllables) + (rng.choice(_CODAS) if rng.random() < 0.25 else "")


def _rough(rng: random.Random) -> str:
    """Names like those of people: open or closed syllables, some without an onset."""
    return "".join(_rough_syllable(rng) for _ in range(2))


def _rough_syllable(rng: random.Random) -> str:
    onset = rng.choice(_VOWELS) if rng.random() < 0.3 else rng.choice(SYLLABLES)
    return onset + (rng.choice(_CODAS) if rng.random() < 0.4 else "")
