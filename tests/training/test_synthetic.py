from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter

import pytest

from pasta_async.lang import parse
from pasta_async.lang.document import Promise, Sync
from pasta_async.training.synthetic import FAMILIES, Split, grade, sample, score, templates
from pasta_async.training.synthetic.families import WORDS, is_held_out, make_name
from pasta_async.training.synthetic.records import ERROR_RATES, annotate_noisily

SPLITS: tuple[Split, ...] = ("train", "names", "templates")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("split", SPLITS)
def test_the_truth_scores_and_is_drawn_alike_each_time(family: str, split: Split) -> None:
    for seed in range(60):
        example = sample(family, seed, split)
        assert score(example, example.document.text)
        assert sample(family, seed, split) == example


@pytest.mark.parametrize("family", FAMILIES)
def test_a_changed_fact_is_wrong(family: str) -> None:
    """Every number and every name of an answer matters, wherever it stands."""
    for seed in range(15):
        example = sample(family, seed, "names")
        text = example.document.text
        for found in re.finditer(r"\d+|[A-Z]\w+", text):
            word = found[0]
            if word.isdigit():
                wrong = str(int(word) + 1)
            elif word in example.names:
                wrong = word + "n"
            else:
                continue
            assert not score(example, text[: found.start()] + wrong + text[found.end() :]), (text, found)


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_repeated_and_misplaced_sentences_are_wrong(family: str) -> None:
    for seed in range(15):
        example = sample(family, seed)
        sentences = re.findall(r"[^.!?]+[.!?]", example.document.text)
        bearing = [i for i, said in enumerate(sentences) if any(map(str.isdigit, said))]
        first, last = bearing[0], bearing[-1]
        assert not score(example, "".join(s for i, s in enumerate(sentences) if i != first))
        assert not score(example, "".join([*sentences, sentences[last]]))
        swapped = list(sentences)
        swapped[first], swapped[last] = swapped[last], swapped[first]
        if example.facts[0] != example.facts[-1]:  # a chain may come back to where it began
            assert not score(example, "".join(swapped))
    assert not score(sample(family, 0), "")


@pytest.mark.parametrize("family", ("describe", "fair"))
def test_closed_words_are_facts_too(family: str) -> None:
    for seed in range(10):
        example = sample(family, seed)
        text = example.document.text
        color = next(word for word in re.findall(r"\w+", text) if word in WORDS["colors"])
        other = WORDS["colors"][WORDS["colors"].index(color) - 1]
        assert not score(example, text.replace(color, other, 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_templates_are_many_and_held_out_ones_are_apart(family: str) -> None:
    train = {template.frame for template in templates(family, "train")}
    held_out = {template.frame for template in templates(family, "templates")}
    assert len(train) >= 20
    assert len(held_out) >= 5
    assert not train & held_out
    assert {template.frame for template in templates(family, "names")} == train


def test_names_are_held_out_by_what_they_are() -> None:
    rng = random.Random(0)
    assert all(is_held_out(make_name(rng, held_out=True)) for _ in range(200))
    assert not any(is_held_out(make_name(rng, held_out=False)) for _ in range(200))
    for family in FAMILIES:
        for seed in range(40):
            assert all(map(is_held_out, sample(family, seed, "names").names))
            assert not any(map(is_held_out, sample(family, seed, "train").names))
            assert not any(map(is_held_out, sample(family, seed, "templates").names))


def test_each_family_has_its_shape() -> None:
    for seed in range(30):
        for family in FAMILIES:
            document = sample(family, seed).document
            syncs = sum(isinstance(node, Sync) for node in document.nodes)
            assert syncs == (family in ("totals", "offers"))
            assert bool(document.promises) == (family != "chain")
        nodes = sample("fair", seed).document.nodes
        kinds = [isinstance(node, Promise) for node in nodes]
        assert kinds == [index % 2 == 1 for index in range(len(kinds))]  # text around each promise


def test_bad_requests_say_what_there_is() -> None:
    with pytest.raises(ValueError, match="describe, totals, offers, chain, fair"):
        sample("poems", 0)
    with pytest.raises(ValueError, match="train, names, templates"):
        sample("fair", 0, "test")  # type: ignore[arg-type]


def test_the_generator_needs_no_torch() -> None:
    code = "import sys, pasta_async.training.synthetic; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_grade_is_the_share_that_is_right() -> None:
    example = sample("totals", 3)
    right = example.document.text
    assert grade(example, right) == 1.0
    assert grade(example, "") == 0.0
    assert grade(example, right + " " + right) == 0.5
    first, *rest = right.split(". ")
    due = len(example.facts)
    wrong = ". ".join([first, rest[0].replace("starts with", "starts with 99"), *rest[1:]])
    assert grade(example, wrong) == pytest.approx((due - 1) / due)
    assert grade(example, ". ".join([first, *rest[1:]])) == pytest.approx((due - 1) / due)
    assert not score(example, wrong)


def test_the_noisy_annotator_changes_no_text_and_errs_at_its_stated_rates() -> None:
    annotated, careless, whole = Counter[str](), Counter[str](), Counter[str]()
    for seed in range(600):
        example = sample("totals", seed)
        document = annotate_noisily(example)
        assert document.text == example.document.text
        assert parse(document.format(), strict=True) == document
        layout = "list" if "\n- " in document.text else "prose"
        whole[layout] += 1
        annotated[layout] += bool(document.promises)
        careless[layout] += bool(document.promises) and Sync() not in document.nodes
    for layout in ("list", "prose"):
        rates = ERROR_RATES[layout]
        assert annotated[layout] / whole[layout] == pytest.approx(rates.annotates, abs=0.1)
        assert careless[layout] / annotated[layout] == pytest.approx(rates.careless, abs=0.1)
