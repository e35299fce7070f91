"""Plans on a model of tests, which knows nothing of JSON: grammars in the sampler, what forks share, and
templates, whose contexts are those of its training, token for token.
"""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from pasta_async import Client, DecodeRequest, InvalidRequestError, Sampling
from pasta_async.backends.local import LocalBackend
from pasta_async.grammar import Grammar
from pasta_async.lang import parse
from pasta_async.plans import After, Plan, Tokens
from pasta_async.testing import ScriptedBackend
from pasta_async.tokenizer import Tokenizer
from pasta_async.training.views import Codec, encode_views
from tests.helpers.answer_runs import promise
from tests.helpers.plan_forms import REVIEW_TEXT, Report, Review
from tests.pasta_tiny import PASTA_TINY

FOUR_HOLES = Plan("A: {a}\nB: {b}\nC: {c}\nD: {d}", **dict.fromkeys("abcd", Tokens(4)))


@pytest.mark.parametrize("form", [Review, Report])
async def test_forms_are_valid_however_wildly_is_sampled(local: LocalBackend, form: type[BaseModel]) -> None:
    async with Client(local) as client:
        for seed in range(5):
            filled = await client.fill("Describe it.", form, temperature=10, seed=seed)
            assert form.model_validate_json(filled.text) == filled.value


async def test_greedy_text_is_the_same_at_any_width(local: LocalBackend) -> None:
    async with Client(local) as client:
        for form in (Review, Report, REVIEW_TEXT):
            wide = await client.fill("Describe it.", form)
            narrow = await client.fill("Describe it.", form, limits={"max_threads": 1})
            assert wide.text == narrow.text


async def test_the_prompt_is_computed_once(local: LocalBackend) -> None:
    async with Client(local) as client:
        filled = await client.fill("Describe it.", Review)
    first, *others = sorted(filled.threads, key=lambda record: record.started or 0)
    assert first.requests[0].cached_tokens == 0
    for record in others:
        assert (record.requests[0].cached_tokens or 0) >= filled.usage.prompt_tokens


async def test_the_text_of_a_template_is_computed_once(local: LocalBackend) -> None:
    async with Client(local) as client:
        filled = await client.fill("Describe it.", FOUR_HOLES)
    requests = [record.requests[0] for record in filled.threads]
    # The last hole's context begins as each other's does, except for the tag that opens the chunk.
    prefilled = [request.prompt_tokens - (request.cached_tokens or 0) for request in requests]
    assert prefilled == [1, 1, 1, requests[-1].prompt_tokens]


async def decoded(local: LocalBackend, grammar: Grammar, tokens: int = 50) -> tuple[str, str | None, int]:
    """The output under a grammar, the reason of its end, and its tokens."""
    model = await local.connect()
    ids = tuple(model.tokenizer.encode("x"))
    request = DecodeRequest("a", 0, ids, tokens, Sampling(temperature=5), seed=1, grammar=grammar)
    pieces = [piece async for piece in local.decode(request)]
    out = [token for piece in pieces for token in piece.ids if token not in model.end_ids]
    return model.tokenizer.decode(out), pieces[-1].finish_reason, len(out)


async def test_a_request_ends_with_its_grammar(local: LocalBackend) -> None:
    text, finish_reason, _ = await decoded(local, Grammar("lark", 'start: "yes" | "no"'))
    assert (text in ("yes", "no"), finish_reason) == (True, "stop")


async def test_a_request_that_is_cut_off_can_be_closed(local: LocalBackend) -> None:
    grammar = Grammar.of_schema({"type": "array", "items": {"type": "string"}, "minItems": 40})
    text, finish_reason, count = await decoded(local, grammar, tokens=9)
    assert (finish_reason, count) == ("length", 9)
    assert not grammar.accepts(text)
    assert grammar.accepts(text + grammar.closing(text))


async def test_a_grammar_that_is_none_is_refused(local: LocalBackend) -> None:
    with pytest.raises(InvalidRequestError):
        await decoded(local, Grammar("lark", "start: nothing"))


# Templates ------------------------------------------------------------------------------------------------


ROUNDS = Plan(
    "Tea: {tea}\nIts_price: {price}\n\nIn short:\n\n{in_short}\n\nEnd: {end} Bye.",
    tea=Tokens(40),
    in_short=(After("tea"), Tokens(30)),
    end=(After("in_short"), Tokens(5)),
)
LISTED = "- clean rooms\n- kind staff"
DOCUMENTS = {
    "two rounds": (
        REVIEW_TEXT,
        f"## Strengths\n{promise('strengths', LISTED, 30)}\n\n## Weaknesses\n"
        f"{promise('weaknesses', '- no wifi', 30)}<sync/>\n\nVerdict:{promise('verdict', ' Good enough.')}",
    ),
    "three rounds": (
        ROUNDS,
        f"Tea:{promise('tea', ' It is green.', 40)}\nIts_price:{promise('price', ' Two euros.', 260)}<sync/>"
        f"\n\nIn short:\n\n{promise('in short', 'Take the tea.', 30)}<sync/>"
        f"\n\nEnd:{promise('end', ' So.', 10)} Bye.",
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_a_template_is_main_with_given_text(name: str) -> None:
    plan, written = DOCUMENTS[name]
    document = parse(written)
    backend = ScriptedBackend(document, tokenizer=Tokenizer.from_folder(PASTA_TINY))
    async with Client(backend, clock=backend.clock) as client:
        report = await client.check(plan)
        filled = await client.fill("Why?", plan, instruct=False)
    assert (filled.text, filled.generation.document) == (document.text, document)
    assert not filled.truncated
    prompt = backend.tokenizer.encode_chat([{"role": "user", "content": "Why?"}], {})
    codec = Codec(PASTA_TINY)
    trained = {view.thread: view for view in encode_views(codec, document) if view.thread}
    assert {play.request.thread for play in backend.played} == trained.keys()
    for play in backend.played:
        view = trained[play.request.thread]
        assert play.request.ids == (*prompt, *view.context)
        assert [*play.ids] == view.target
    assert report.bounds
    assert max(len(play.request.ids) for play in backend.played) <= len(prompt) + report.bounds.context


async def test_a_hole_sees_all_up_to_the_last_sync() -> None:
    async with Client(ScriptedBackend("x")) as client:
        report = await client.check(ROUNDS)
    async with Client(ScriptedBackend("x", trained=False)) as client:
        untrained = await client.check(ROUNDS)
    assert report.sees["in_short"] == ("tea", "price")
    assert report.sees["end"] == ("tea", "price", "in_short")
    assert untrained.sees["in_short"] == ("tea",)


async def test_a_template_whose_hole_sees_a_later_one_has_no_tags() -> None:
    plan = Plan("In short: {short}\n\nDetails: {details}", short=After("details"))
    backend = ScriptedBackend("yes")
    async with Client(backend) as client:
        filled = await client.fill("Why?", plan)
    assert backend.tokenizer.tags
    assert not {*backend.tokenizer.tags}.intersection(*(play.request.ids for play in backend.played))
    assert filled.generation.document.promises == ()
