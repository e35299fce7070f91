from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus import Record, read_records
from pasta_async.training.leakage import LeakageFilter
from pasta_async.training.prompts import (
    PromptSettings,
    families,
    forms,
    lacks_form,
    lacks_passage,
    ordered,
    write_prompts,
)


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


def test_a_share_of_the_prompts_asks_for_a_form_and_every_form_is_recognised() -> None:
    def asking(share: float) -> list[list[int]]:
        found = (record.prompt for record in islice(ordered(1, in_form=share), 600))
        return [[place for place, form in enumerate(forms()) if form.wanted(prompt)] for prompt in found]

    all_of_them = asking(1.0)
    assert all(all_of_them)
    assert {place for found in all_of_them for place in found} == set(range(len(forms())))
    assert sum(map(bool, asking(0.25))) / 600 == pytest.approx(0.25, abs=0.06)
    assert not any("{" in record.prompt for record in islice(ordered(1, in_form=1.0), 600))


@pytest.mark.parametrize(
    ("asks", "has", "lacks"),
    [
        ("Add a postscript at the end, starting with P.S.", "Yes.\n\nP.S. No.", "Yes, but not in P.S.-land."),
        ("Add a P.P.S. at the end of the answer.", "Yes.\nP.P.S. No.", "Yes.\nP.S. No."),
        ("Put a title on top, written like this: <<title>>.", "<<Tea>>\nIt is hot.", "Tea\nIt is hot."),
        ("The first line should be a title in capitals.", "ON TEA\nIt is hot.", "On tea\nIt is hot."),
        ("Begin with a heading that starts with #.", "## Tea\nHot.", "Tea\nHot. Our #1."),
        ('Use exactly 2 bullet points, each starting with "* ".', "Two:\n* a\n* b", "* a\n* b\n* c"),
        ("Use bullet points that start with a dash (-).", "- a\n- b", "1. a\n2. b"),
        ("Write 2 sections, each of which begins with \"SECTION\" and its number.",
         "SECTION 1\na\n\nSECTION 2\nb", "SECTION 1\na\n\nTwo\nb"),
        ("Write 2 paragraphs, separated by ***.", "One.\n\n***\n\nTwo.", "One.\n\nTwo."),
        ("Give me two versions, and put ****** between them.", "One.\n******\nTwo.", "One.\n***\nTwo."),
        ("Answer in JSON.", '```json\n{"tea": 1}\n```', 'Here it is: {"tea": 1}'),
        ("Put it into a table.", "| a | b |\n|---|---|\n| 1 | 2 |", "a: 1, b: 2"),
        ("Answer in French.", "Le thé est bon pour la santé et le coeur.", "The tea is good."),
        ("Answer in Spanish.", "El té es bueno para el corazón y para los nervios.", "Tea is good."),
        ("Answer in German.", "Der Tee ist gut und das Wasser nicht.", "Tea is good."),
        ("Respond in Italian only.", "Il tè è una bevanda che va bene con il pane.", "Tea is good."),
        ("Please use Portuguese only.", "O chá que eu bebo faz bem para uma pessoa em casa.", "Tea is good."),
        ("Put your entire response in double quotation marks.", '"Tea."', '"Tea." is good'),
        ("Use capital letters only.", "TEA IS HOT.", "TEA is hot."),
        ("Use lowercase letters only.", "tea is hot.", "Tea is hot."),
        ("Do not use any commas.", "Hot and good.", "Hot, and good."),
        ("End with this phrase: Stay curious!", "Tea is hot. Stay curious!", "Stay curious! Tea is hot."),
        ('Start with the words "Dear Ana".', "Dear Ana,\ntea is hot.", "Tea is hot, dear Ana."),
        ("Sign it with the name Leo.", "Tea is hot.\n\nYours, Leo", "Leo says that tea is hot."),
        ("Highlight at least 2 words with asterisks, like *this*.", "*Tea* is **hot**.", "* Tea\n* is hot"),
        ("Leave at least 2 placeholders in square brackets, such as [address].", "[a] or [b]", "[a] or b"),
        ("Use no more than 2 sentences.", "Tea is hot. Is it? Yes", "Tea is. It is hot. Yes. No."),
        ("Write one paragraph.", "Tea is hot. It is good.", "Tea is hot.\n\nIt is good."),
        ("No lists and no headings, please.", "Tea is hot.\n\nIt is good.", "Tea is:\n1. hot\n2. good"),
    ],
)  # fmt: skip
def test_an_answer_has_the_form_that_was_asked_for_or_lacks_it(asks: str, has: str, lacks: str) -> None:
    assert not lacks_form(f"Tell me about tea. {asks}", has)
    assert lacks_form(f"Tell me about tea. {asks}", lacks)
    assert not lacks_form("Tell me about tea.", lacks)


def test_more_prompts_than_there_are_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompts: list[Record]
) -> None:
    def few(*_: object) -> Iterator[Record]:
        return iter(prompts[:10])

    monkeypatch.setattr("pasta_async.training.prompts.ordered", few)
    with pytest.raises(InvalidRequestError):
        write_prompts(PromptSettings(out=tmp_path / "out.jsonl", count=11))
    assert not (tmp_path / "out.jsonl").exists()
