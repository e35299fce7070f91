"""Faults that a program counts: each rule, on texts that have the fault and on texts that only look so."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_async.lang import parse
from pasta_async.training.data.corpus import Asked
from pasta_async.training.faults import (
    OF_PROMISES,
    Faults,
    asked_count,
    count_faults,
    repeats_itself,
    soundness,
)
from pasta_async.training.samples import faults_of_sample
from tests.helpers.answer_runs import promise
from tests.helpers.samples import sample

TEA, COFFEE = "Tea comes from China, where it grew wild.", "Coffee was first drunk in Yemen."


def faults(*written: str, **known: object) -> Faults:
    return count_faults(parse("\n".join(written)), **known)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("fault", "written"),
    [
        ("same_topic", [promise("Tea origin", TEA), promise("origin Tea", "The origin of it is unknown.")]),
        ("empty", [promise("Tea", " - "), promise("Coffee", COFFEE)]),
        ("cut", [promise("Tea", f"{TEA} It was then"), promise("Coffee", COFFEE)]),
        ("cut", [promise("Tea", "Tea is grown in China, India and the"), promise("Coffee", COFFEE)]),
        ("repeat", [promise("Tea", TEA), promise("China", TEA.replace("Tea", "It"))]),
        ("repeat", [TEA, promise("Tea", f"{TEA} Now on farms."), promise("Coffee", COFFEE)]),
        ("off_topic", [promise("Health", TEA), promise("Coffee", COFFEE)]),
        ("unspaced", ["1." + promise("Tea", TEA), "2. " + promise("Coffee", COFFEE)]),
        ("unspaced", ["**" + promise("Tea", TEA) + "But " + promise("Coffee", COFFEE)]),
    ],
)
def test_the_fault_of_one_promise_is_counted_alone(fault: str, written: list[str]) -> None:
    counted = faults(*written)
    assert counted == Faults(2, Counter({fault: 1}))
    assert soundness(counted) < 1


@pytest.mark.parametrize(
    "written",
    [
        [promise("Taste", "A tasty drink."), promise("Healthy habits", "It is good for health")],
        ["1. **Cost**: ", promise("Costs", "five dollars")],
        ["**Garnish**:", promise("Garnish", "- Sprinkle almonds.")],
        [promise("Steps", "Steps:\n1. Mix the flour.\n2. Bake"), promise("Tools", "A tool: e.g. 2.5 inches")],
    ],
)
def test_what_only_looks_like_a_fault_is_none(written: list[str]) -> None:
    assert soundness(faults(*written)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "1. John C. Reilly\n2. John C. Reilly\n3. John C. Reilly",
        "He was a good man and he was a good man and he was a good man and he was a good man and he was.",
    ],
)
def test_a_text_that_repeats_itself_loops(text: str) -> None:
    assert repeats_itself(text)
    assert faults(text).counts["loop"]


@pytest.mark.parametrize("text", ["There are four ways:", "Steps are **below:**\n\n"])
def test_an_answer_that_ends_with_what_it_announces_is_unfinished(text: str) -> None:
    assert faults(text) == Faults(0, Counter(unfinished=1))
    assert not faults(text, "Wash it.").counts["unfinished"]


def test_long_lists_run_away_and_those_that_never_end_sooner() -> None:
    items = [f"{number}. {chr(96 + number) * 4} is one" for number in range(1, 26)]
    assert faults(*items).counts["runaway"]
    assert not faults(*items[:20]).counts["runaway"]
    assert faults(*items[:11], well_formed=False) == Faults(0, Counter(malformed=1, runaway=1))
    assert not faults(*items[:12], "Others are:", *items[12:]).counts["runaway"], "two lists"
    assert faults(*(promise(item[-11:], item) for item in items)).counts["runaway"]


@pytest.mark.parametrize(
    ("prompt", "count"),
    [
        ("Give five tips for better sleep.", 5),
        ("Can you recommend 3 diverse parks in California?", 3),
        ("What are the four largest islands?", 4),
        ("Give me a list of the top 10 movies", 10),
        ("Write three paragraphs about tea.", None),
        ("Describe a day in 3 sentences", None),
        ("Give me two or three ideas", None),
        ("Name a city with 2 airports.", None),
    ],
)
def test_how_many_things_a_prompt_asks_for(prompt: str, count: int | None) -> None:
    assert asked_count(prompt) == count


def test_a_list_of_another_length_than_was_asked_for_is_a_miscount() -> None:
    three = (promise("Tea", TEA), promise("Coffee", COFFEE), promise("Water", "Water is older than both."))
    assert faults(*three, prompt="Give five tips.") == Faults(3, Counter(miscount=1))
    assert faults("1. Tea", "2. Coffee", prompt="Give five tips.").counts["miscount"]
    assert not faults(*three, prompt="Give three tips.").counts["miscount"]
    assert not faults(*three, prompt="Give some tips.").counts["miscount"]
    assert not faults("Just one: drink tea.", prompt="Give five tips.").counts["miscount"], "no list"
    both = ("1. " + promise("Tea", TEA), "2. " + promise("Coffee", COFFEE))
    twice = faults("Good:", *both, "Bad:", *both, prompt="Give two advantages and two drawbacks.")
    assert not twice.counts["miscount"]
    introduced = faults(promise("introduction", "Here they come."), *three, prompt="Give three tips.")
    assert introduced == Faults(4, Counter())


def test_an_answer_that_lacks_the_form_that_was_asked_for_is_formless() -> None:
    form = r".*^\W*P\.S\."
    assert faults("Tea is hot.", form=form) == Faults(0, Counter(formless=1))
    assert faults(promise("Tea", TEA), "\n\nP.S. Water is older.", form=form) == Faults(1, Counter())


def test_what_ended_a_sampled_chunk_is_known() -> None:
    written = f"{promise('Tea', TEA)} {promise('Coffee', COFFEE)}"
    drawn = sample(0, f"{TEA} {COFFEE}", written=written, cut=(2,))
    prompt = Asked(id="x", messages=({"role": "user", "content": "Tell"},))
    assert faults_of_sample(drawn, prompt) == Faults(2, Counter(cut=1))
    three = prompt.model_copy(update={"messages": ({"role": "user", "content": "Name three drinks."},)})
    assert faults_of_sample(drawn, three) == Faults(2, Counter(miscount=1, cut=1))


@given(
    st.text("ab .,\n1-", max_size=80), st.lists(st.text("ab .,\n", max_size=20), max_size=4), st.booleans()
)
def test_counts_stay_within_bounds_for_any_text(text: str, chunks: list[str], well_formed: bool) -> None:
    counted = faults(text, *(promise("a", chunk) for chunk in chunks), well_formed=well_formed)
    assert all(0 <= counted.counts[name] <= counted.promises == len(chunks) for name in OF_PROMISES)
    assert 0 <= soundness(counted) <= 1
