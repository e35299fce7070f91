"""Samples for stage 2: what is stored is what was decoded, and nothing is drawn twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pasta_async import Client, Limits, Sampling
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.local.batch import Floats
from pasta_async.errors import BackendError, BackendStatusError, ThreadFailedError
from pasta_async.lang import parse
from pasta_async.protocol import DecodeRequest, Piece
from pasta_async.testing import Fault, ScriptedBackend
from pasta_async.training import sample as sampling
from pasta_async.training.data.corpus import Record, read_records, write_records
from pasta_async.training.model import ModelMaker
from pasta_async.training.rows import pack_row, target_losses
from pasta_async.training.sample import Recording, trie_of
from pasta_async.training.samples import read_samples
from pasta_async.training.views import Codec, Trie, encode_views, pack_views
from tests.helpers.answer_runs import Obedient, promise
from tests.helpers.commands_run import failed, status
from tests.helpers.sample_draws import PROMPTS, WRITTEN, draw, records
from tests.helpers.vocabularies import tokenizer
from tests.pasta_tiny import EXAMPLES, PASTA_TINY


def asked(count: int) -> list[Record]:
    """Prompts that pasta-tiny can answer."""
    return [*read_records(EXAMPLES)][:count]


def paths(trie: Trie) -> set[tuple[tuple[int, ...], bool]]:
    """The content of a trie, in whatever order it was built: each token's path, and True for a target."""
    token_paths: list[tuple[int, ...]] = []
    for token, parent in zip(trie.ids, trie.parents, strict=True):
        token_paths.append((*(token_paths[parent] if parent >= 0 else ()), token))
    assert len(trie.targets) == len(set(trie.targets))
    return {(path, index in set(trie.targets)) for index, path in enumerate(token_paths)}


# What was decoded ----------------------------------------------------------------------------------------


async def test_a_chunk_that_reached_its_limit_ends_without_a_target() -> None:
    backend = ScriptedBackend(WRITTEN)
    recording = Recording(backend)
    async with Client(recording, limits=Limits(chunk_tokens=2)) as client:
        answer = await client.generate("Tell")
    trie = trie_of(recording.exchanges)
    assert backend.tokenizer.tags
    closing = [node for node, token in enumerate(trie.ids) if token == backend.tokenizer.tags.close_async]
    assert len(closing) == 2
    assert not {*closing} & {*trie.targets}
    assert len(trie.targets) == answer.usage.completion_tokens


class Listening(LocalBackend):
    """Adds up the log-probabilities of what it decodes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(PASTA_TINY, *args)
        self.total = 0.0

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        steps: list[torch.Tensor] = []

        def note(generated: Sequence[int], logits: Floats) -> Floats:
            steps.append(torch.tensor(logits).log_softmax(-1))
            return logits

        rest = iter(steps)
        noting = replace(request, extra={**request.extra, "logits_processor": note})
        async with aclosing(super().decode(noting)) as pieces:
            async for piece in pieces:
                self.total += sum(next(rest)[token].item() for token in piece.ids)
                yield piece


@pytest.mark.parametrize(("temperature", "max_tokens"), [(1.0, 1024), (1.6, 200)])
async def test_training_sees_the_probabilities_that_were_sampled_from(
    temperature: float, max_tokens: int
) -> None:
    """Also at a temperature at which the model writes words in tokens that no tokenizer would choose."""
    codec, backend = Codec(PASTA_TINY), Listening()
    model = ModelMaker(PASTA_TINY, codec.tag_ids).make().eval()
    usual = promises = 0
    async with Client(backend):
        for seed, record in enumerate(asked(5)):
            backend.total = 0.0
            chosen = Sampling(temperature=temperature, seed=seed, max_tokens=max_tokens)
            recording = Recording(backend)
            answer = await Client(recording).generate(record.messages, sampling=chosen)
            trie = trie_of(recording.exchanges)
            assert len(trie.targets) == answer.usage.completion_tokens
            row = pack_row([trie], -len(trie) % 16 + len(trie))
            with torch.inference_mode():
                seen = -target_losses(model, row).sum().item()
            assert seen == pytest.approx(backend.total, abs=2e-2)
            if answer.finish_reason != "stop" or answer.diagnostics:
                continue
            packed = pack_views(codec, codec.prompt(record.messages), answer.document)
            same = paths(trie) == paths(packed)
            written = [exchange.output for exchange in recording.exchanges if exchange.output]
            usual_tokens = sorted(view.target for view in encode_views(codec, answer.document))
            assert same == (sorted(written) == usual_tokens)
            promises += len(answer.document.promises)
            if same:
                usual += 1
    if temperature == 1.0:
        assert usual and promises, "no answer to compare with"


# What is drawn -------------------------------------------------------------------------------------------


def test_every_answer_has_its_own_seed_and_its_record(tmp_path: Path) -> None:
    backend, plain = ScriptedBackend(WRITTEN), ScriptedBackend("Both of them were one.")
    prompts, totals, _ = draw(backend, tmp_path / "j.jsonl", plain=plain)
    samples = [sample for prompt in prompts for sample in prompt.samples]
    assert [prompt.id for prompt in prompts] == [*PROMPTS]
    assert [sample.number for sample in samples] == [0, 1, 2] * 3
    seeds = [sampling.answer_seed(7, prompt, number) for prompt in PROMPTS for number in range(3)]
    assert [sample.seed for sample in samples] == seeds
    assert len({*seeds}) == 9
    for sample in samples:
        assert sample.exact
        assert sample.well_formed
        assert sample.text == parse(WRITTEN).text
        assert sample.written == WRITTEN
        assert sample.tokens == len(sample.targets)
        assert sample.cut == ()
        assert sample.critical_path < sample.tokens
    assert {prompt.baseline.text for prompt in prompts} == {"Both of them were one."}
    assert prompts[0].baseline.tokens == 7
    assert totals["answers"] == 12 and totals["resumed"] == 0
    assert totals["tokens"] == 9 * samples[0].tokens + 3 * 7
    greedy_requests = [request for request in plain.requests if request.sampling.temperature == 0]
    assert len(greedy_requests) == len(plain.requests) == 3


def test_some_samples_may_be_drawn_without_syncs(tmp_path: Path) -> None:
    backend = ScriptedBackend(WRITTEN)
    draw(backend, tmp_path / "j.jsonl", records("one"), n=2, without_syncs=1, together=1)
    tags = backend.tokenizer.tags
    assert tags
    banned = [request.banned_ids for request in backend.requests if not request.thread]
    with_tags = [tags.sync in ids for ids in banned if tags.promise not in ids]  # not the plain answer's
    assert with_tags == [True, True, False, False]  # each goes on behind the join


def test_an_answer_with_threads_that_its_limit_cut_is_never_trained_on(tmp_path: Path) -> None:
    cut, *_ = draw(ScriptedBackend(WRITTEN), tmp_path / "cut.jsonl", records("one"), max_tokens=20)
    assert {(s.finish_reason, s.exact, s.well_formed) for s in cut[0].samples} == {("length", False, False)}
    plain, *_ = draw(ScriptedBackend("word " * 40), tmp_path / "plain.jsonl", records("one"), max_tokens=20)
    assert {(s.finish_reason, s.exact, s.tokens) for s in plain[0].samples} == {("length", True, 20)}


def test_an_answer_that_took_a_promise_back_is_never_trained_on(tmp_path: Path) -> None:
    tea = promise("tea", "Warm.")
    backend = Obedient(f"1. {tea}\n2. {tea}", tokenizer=tokenizer("bytes"))
    prompts, *_ = draw(backend, tmp_path / "j.jsonl", records("one"), n=1)
    (answer,) = prompts[0].samples
    assert (answer.text, answer.well_formed, answer.exact) == ("1. Warm.\n2. Water.\n", True, False)


def test_an_answer_with_a_chunk_that_loops_is_never_the_best(tmp_path: Path) -> None:
    backend = ScriptedBackend(f"1. {promise('tea', 'So it began: ' + 'word ' * 80)}\nDone.")
    prompts, *_ = draw(backend, tmp_path / "j.jsonl", records("one"), n=1)
    (answer,) = prompts[0].samples
    assert (answer.finish_reason, answer.well_formed, answer.tokens < 80) == ("length", False, True)


@pytest.mark.parametrize("stretch", ["word ", "one two three four five six seven ", "tea and coffee, "])
def test_a_loop_ends_the_answer_early(stretch: str, tmp_path: Path) -> None:
    looping, *_ = draw(ScriptedBackend("So it began: " + stretch * 80), tmp_path / "j.jsonl", records("one"))
    assert {(s.finish_reason, s.well_formed, s.tokens < 80) for s in looping[0].samples} == {
        ("length", False, True)
    }
    counting = "".join(f"{number} and {number} again, " for number in range(80))
    other, *_ = draw(ScriptedBackend(counting), tmp_path / "other.jsonl", records("one"))
    assert {s.finish_reason for s in other[0].samples} == {"stop"}


# What goes wrong -----------------------------------------------------------------------------------------


def test_an_answer_that_fails_is_left_out_until_it_is_there(tmp_path: Path) -> None:
    backend = ScriptedBackend(WRITTEN, faults=[Fault(2, 3, skip=4)])
    plain = ScriptedBackend("Plainly.", faults=[Fault(0, 1, skip=1)])
    prompts, _, failures = draw(backend, tmp_path / "j.jsonl", plain=plain, together=1)
    assert [prompt.id for prompt in prompts] == ["one", "three"]
    assert [len(prompt.samples) for prompt in prompts] == [3, 3]
    assert len(failures) == 2
    prompts, totals, _ = draw(backend, tmp_path / "j.jsonl", plain=plain, together=1)
    assert totals["answers"] == 2
    assert [(prompt.id, len(prompt.samples)) for prompt in prompts] == [(name, 3) for name in PROMPTS]
    assert all(sample.exact for prompt in prompts for sample in prompt.samples)


@pytest.mark.parametrize(
    ("error", "most"),
    [(None, 10), (BackendStatusError("wrong key", status=401), 1)],
    ids=["dead", "refusing"],
)
def test_a_backend_that_is_lost_ends_the_run_and_what_is_there_is_kept(
    error: BackendError | None, most: int, tmp_path: Path
) -> None:
    backend = ScriptedBackend(WRITTEN, faults=[Fault(0, 0, skip=6, times=1000, error=error)])
    with pytest.raises(ThreadFailedError):
        draw(backend, tmp_path / "j.jsonl", n=20, together=1)
    answers = {request.answer for request in backend.requests}
    healthy = ScriptedBackend(WRITTEN)
    _, totals, _ = draw(healthy, tmp_path / "j.jsonl", n=20)
    assert totals["resumed"] == len(answers) - most > 0
    assert totals["answers"] == 3 * 21 - totals["resumed"]


# The command line ----------------------------------------------------------------------------------------


def flags(folder: Path, **given: object) -> list[str]:
    values = {"prompts": folder / "prompts.jsonl", "out": folder / "samples.jsonl", "n": 2, "max_tokens": 48}
    return [word for k, v in {**values, **given}.items() for word in (f"--{k.replace('_', '-')}", str(v))]


def test_the_real_engine_draws_the_same_alone_and_in_company(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(tmp_path / "prompts.jsonl", asked(3))
    folder = shutil.copytree(PASTA_TINY, tmp_path / "model")
    # Of an answer that is cut, how much was decoded behind the cut depends on timing: none is.
    alone = flags(tmp_path, max_tokens=512)
    together = flags(tmp_path, out=tmp_path / "b.jsonl", max_tokens=512)
    assert status(sampling.main, *alone, "--backend", f"local:{folder}", "--together", "1") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["samples"], summary["prompts"]) == (6, 3)
    assert status(sampling.main, *together, "--backend", f"local:{folder}", "--together", "9") == 0
    first, second = ([*read_samples(tmp_path / name)] for name in ("samples.jsonl", "b.jsonl"))
    assert first == second
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert status(sampling.main, *alone, "--backend", f"local:{folder}") == 2
    assert "weights" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompts": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"backend": "ftp:x"}, "ftp:x"),
        ({"skip": "100"}, "behind the first 100"),
    ],
)
def test_bad_input_ends_it_before_anything_is_drawn(
    given: dict[str, str], message: str, tmp_path: Path
) -> None:
    write_records(tmp_path / "prompts.jsonl", records())
    assert message in failed(sampling.main, *flags(tmp_path, **given))
    assert not list(tmp_path.glob("samples*"))
