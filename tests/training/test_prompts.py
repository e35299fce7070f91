from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus import read_records
from pasta_async.training.leakage import LeakageFilter
from pasta_async.training.prompts import PromptSettings, families, lacks_passage, ordered, write_prompts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pasta_async.training.corpus import Record


@pytest.fixture(scope="module")
def prompts() -> list[Record]:
    return list(islice(ordered(1), 6000))


def test_thousands_of_prompts_are_different(prompts: list[Record]) -> None:
    assert len(prompts) == 6000
    assert len({record.prompt.casefold() for record in prompts}) == 6000
    assert len({record.id for record in prompts}) == 6000
    assert not any("{" in record.prompt or "  " in record.prompt for record in prompts)


def test_a_seed_gives_the_same_prompts_and_another_seed_others(prompts: list[Record]) -> None:
    assert list(islice(ordered(1), 100)) == prompts[:100]
    assert list(islice(ordered(2), 100)) != prompts[:100]


def test_every_family_is_there_as_often_as_its_weight_says(prompts: list[Record]) -> None:
    found = Counter(record.id.partition("/")[0] for record in prompts[:2000])
    total = sum(family.weight for family in families().values())
    for name, family in families().items():
        assert found[name] == pytest.approx(2000 * family.weight / total, rel=0.4), name


def test_no_request_about_a_topic_comes_twice_and_topics_take_turns(prompts: list[Record]) -> None:
    capitals = [record for record in prompts[:3000] if "the capital of Portugal" in record.prompt]
    assert 1 <= len(capitals) <= 4
    tips = [record.prompt for record in prompts if record.id.startswith("tips/")]
    topics = [topic for group in families()["tips"].groups for topic in group.topics]
    for topic in topics:
        assert sum(topic in prompt for prompt in tips[: len(topics)]) >= 1, topic


def test_parts_of_the_order_are_disjoint_and_evaluation_prompts_are_left_out(tmp_path: Path) -> None:
    leaked = next(ordered(1)).prompt
    evaluation = tmp_path / "evaluation.jsonl"
    evaluation.write_text(json.dumps({"prompt": leaked}) + "\n")
    first = PromptSettings(out=tmp_path / "1.jsonl", count=60, against=(evaluation,))
    figures = write_prompts(first)
    assert (figures["prompts"], sum(figures["families"].values())) == (60, 60)
    assert sum(figures["left_out"].values()) >= 1
    write_prompts(first.model_copy(update={"out": tmp_path / "2.jsonl", "skip": 60}))
    one, two = ([*read_records(tmp_path / name)] for name in ("1.jsonl", "2.jsonl"))
    assert len({record.prompt for record in one + two}) == 120
    assert len({record.id for record in one + two}) == 120
    leaks = LeakageFilter((leaked,))
    assert not any(leaks.find(record.prompt) for record in one + two)


def test_prompts_of_a_packed_file_take_part_without_those_whose_passage_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "dolly.jsonl.gz"
    asked = [f"Who was the {number}. president?" for number in range(30)]
    rows = [*asked, "According to the passage, who won?", "Who won, in the text?\n\nThe text: Ann won."]
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({"source": "d", "prompt": row, "reference": "R."}) + "\n" for row in rows)
    found = list(islice(ordered(3, (path,), 0.5), 300))
    theirs = [record for record in found if record.id.startswith("dolly/")]
    assert {record.prompt for record in theirs} == {*asked, rows[-1]}
    assert {record.source for record in theirs} == {"dolly.jsonl.gz"}
    assert sum(record in found[:40] for record in theirs) >= 10
    with pytest.raises(InvalidRequestError):
        next(ordered(3, (path, path)))


@pytest.mark.parametrize(
    ("prompt", "lacking"),
    [
        ("Given this paragraph about Oslo, tell me where it lies.", True),
        ("Extract the names from the text.", True),
        ("From the passage provided, list the rivers.", True),
        ("Extract the names from the text.\n\nAnn met Bob.", False),
        ("Write one paragraph about data.", False),
        ("Classify each of the following: plane, ship.", False),
    ],
)
def test_a_prompt_that_speaks_of_a_passage_lacks_it(prompt: str, lacking: bool) -> None:
    assert lacks_passage(prompt) is lacking


def test_more_prompts_than_there_are_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompts: list[Record]
) -> None:
    def few(*_: object) -> Iterator[Record]:
        return iter(prompts[:10])

    monkeypatch.setattr("pasta_async.training.prompts.ordered", few)
    with pytest.raises(InvalidRequestError):
        write_prompts(PromptSettings(out=tmp_path / "out.jsonl", count=11))
    assert not (tmp_path / "out.jsonl").exists()
