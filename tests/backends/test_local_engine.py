"""The engine's step: the tokens of transformers, whatever shares the batch, the cache, or runs out."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from pasta_async.backends.local.sampler import TokenSampler, sample
from pasta_async.backends.local.scheduler import Job
from pasta_async.options import Sampling
from tests.helpers import local_models
from tests.helpers.cache_checks import check_scheduler
from tests.helpers.engine_jobs import decoded, job, open_engine, run, watched


def prompt(length: int) -> list[int]:
    return np.random.default_rng([length, 0]).integers(0, 512, length).tolist()


@pytest.fixture(scope="module")
def original() -> Any:
    return local_models.model()


@pytest.fixture(scope="module")
def folder(original: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine")
    original.save_pretrained(path)
    return path


def check_decoded(original: Any, *jobs: Job) -> None:
    """Every job has decoded what transformers does."""
    for task in jobs:
        ids = task.ids[: task.prompt_length].tolist()
        assert decoded(task) == _greedy(original, tuple(ids), task.max_length - task.prompt_length)


@cache
def _greedy(original: Any, ids: tuple[int, ...], count: int) -> list[int]:
    return local_models.greedy(original, [*ids], count)


@pytest.mark.parametrize("variant", local_models.VARIANTS)
def test_greedy_tokens_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    model = local_models.model(**local_models.VARIANTS[variant])
    model.save_pretrained(tmp_path)
    engine = open_engine(tmp_path, slots=1024, max_prefill_tokens=48)
    prompts = [prompt(length) for length in (1, 7, 75)]
    jobs = [job(ids, 16, group=i // 2) for i, ids in enumerate(prompts)]
    run(engine, *jobs)
    assert [decoded(task) for task in jobs] == [local_models.greedy(model, ids, 16) for ids in prompts]


def test_half_precision_files_are_computed_in_float32(original: Any, tmp_path: Path) -> None:
    model = local_models.model().to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="200KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    task = job(prompt(20), 16)
    run(open_engine(tmp_path, slots=256), task)
    untyped: Any = LlamaForCausalLM
    again = untyped.from_pretrained(tmp_path, dtype=torch.float32)
    assert decoded(task) == local_models.greedy(again, prompt(20), 16)


def test_half_precision_can_be_asked_for(original: Any, folder: Path) -> None:
    engine = open_engine(folder, slots=256, dtype="bfloat16")
    with torch.no_grad():
        expected = original(torch.tensor([prompt(40)])).logits[0, -1].log_softmax(-1)
    (output,) = watched(engine, prompt(40), count=1)
    seen = output.logits[0].log_softmax(-1)
    assert (seen - expected)[expected.argmax()].abs() < 0.2
    tasks = [job([*prompt(40)[:-1], token], 5) for token in (prompt(40)[-1], 7)]
    run(engine, *tasks)
    assert [len(decoded(task)) for task in tasks] == [5, 5]


def test_a_fork_finds_what_its_running_parent_has_decoded(original: Any, folder: Path) -> None:
    engine = open_engine(folder, slots=1024)
    parent = job(prompt(40), 60)
    engine.scheduler.add(parent)
    for _ in range(20):
        engine.step()
    context = parent.ids[: parent.length].tolist()
    forks = [job([*context, extra], 20) for extra in (3, 4)]
    free = engine.scheduler.pool.free
    run(engine, *forks)
    assert [fork.cached for fork in forks] == [len(context) - 1] * 2  # the last token was not computed yet
    assert free - engine.scheduler.pool.free <= 2 * (2 + 20) + 40
    check_decoded(original, parent, *forks)


def test_a_fork_that_waits_for_slots_adds_nothing_to_the_tree(folder: Path) -> None:
    engine = open_engine(folder, slots=128)
    parent = job(prompt(60), 66)
    engine.scheduler.add(parent)
    while engine.scheduler.pool.free > 8:
        engine.step()
    engine.scheduler.add(job([*parent.ids[: parent.length].tolist(), 3], 2))
    published = parent.published
    for _ in range(3):
        engine.step()
    assert parent.published == published


def test_a_step_has_no_more_prompt_tokens_than_its_limit(folder: Path) -> None:
    engine = open_engine(folder, slots=1024, max_prefill_tokens=32)
    running, long = job(prompt(5), 50, group="a"), job(prompt(200), 1, group="b")
    engine.scheduler.add(running)
    engine.step()
    engine.scheduler.add(long)
    steps = 0
    while long.length == long.prompt_length:
        before = running.length
        engine.step()
        steps += 1
        assert running.length == before + 1  # it is not stalled
    assert steps == 7  # 32 of 200 beside the decoded token


def test_the_oldest_job_goes_on_when_a_younger_one_before_it_is_preempted(folder: Path) -> None:
    """A job of an answer that has started is admitted first; then slots run short for both."""
    conversation = prompt(60)
    engine = open_engine(folder, slots=128, max_prefill_tokens=16)
    run(engine, job([*conversation, 1], 1, group="old"), job([5, 6], 1, group="started"))
    old = job([*conversation, 2, 3], 5, group="new")
    young = job(range(100, 200), 5, group="started")
    run(engine, old, young)
    assert [len(decoded(task)) for task in (old, young)] == [5, 5]


def test_a_prompt_that_comes_many_times_at_once_is_computed_once(original: Any, folder: Path) -> None:
    engine = open_engine(folder, slots=1024, max_prefill_tokens=64)
    jobs = [job([*prompt(200), extra], 5, group=extra) for extra in range(3, 7)]
    run(engine, *jobs)
    # The second one took what was left of the step in which the first one's prompt ended: 55 of 64 tokens.
    assert [task.cached for task in jobs] == [0, 200 - 55, 200, 200]
    check_decoded(original, *jobs)


def test_started_answers_go_before_new_ones(folder: Path) -> None:
    engine = open_engine(folder, slots=1024, max_running=1)
    main = job(prompt(10), 2, group="first")
    run(engine, main)
    new, chunk = job(prompt(12), 2, group="second"), job(prompt(14), 2, group="first")
    engine.scheduler.add(new)
    engine.scheduler.add(chunk)
    ended: list[Job] = []
    while (outputs := engine.step()) is not None:
        ended += [output.job for output in outputs if output.finish_reason]
    assert ended == [chunk, new]


@settings(max_examples=settings().max_examples // 3)
@given(st.data())
def test_any_mix_of_forks_and_removals_decodes_the_same(
    original: Any, folder: Path, data: st.DataObject
) -> None:
    """A random schedule in a small pool; every sequence continues as it would alone."""
    slots = data.draw(st.sampled_from([96, 160, 400]))
    engine = open_engine(folder, slots=slots, max_prefill_tokens=16, max_running=4)
    alive: list[Job] = []
    done: list[Job] = []
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["new", "fork", "remove", "step", "step", "step"]))
        if action == "new":
            task = job(prompt(data.draw(st.integers(1, 40))), data.draw(st.integers(1, 20)), group=len(done))
        elif action == "fork" and alive + done:
            parent = data.draw(st.sampled_from(alive + done))
            ids = [*parent.ids[: parent.length].tolist(), data.draw(st.integers(0, 511))]
            task = job(ids[-60:] if len(ids) > 60 else ids, 8, group=parent.answer)
        else:
            task = None
        if task is not None:
            engine.scheduler.add(task)
            alive.append(task)
        elif alive and action == "remove":
            engine.scheduler.remove(alive.pop(data.draw(st.integers(0, len(alive) - 1))))
        else:
            ended = [output.job for output in engine.step() or () if output.finish_reason]
            alive = [task for task in alive if task not in ended]
            done += ended
        check_scheduler(engine.scheduler)
    while engine.step() is not None:
        check_scheduler(engine.scheduler)
    check_decoded(original, *alive, *done)


def _drawn(logits: torch.Tensor, count: int, **sampling: Any) -> torch.Tensor:
    """Frequencies of the tokens drawn from one row of logits."""
    samplers = [TokenSampler(Sampling(**sampling), seed) for seed in range(count)]
    tokens = sample(logits.repeat(count, 1).numpy(), samplers, [np.empty(0, np.int64)] * count)
    return torch.bincount(torch.tensor(tokens), minlength=len(logits)) / count


@pytest.mark.parametrize("cut", [{}, {"top_k": 4}], ids=["whole", "sorted"])
def test_draws_follow_the_distribution(cut: dict[str, Any]) -> None:
    logits = torch.tensor([0.5, 2.0, 1.0, -1.0])
    seen = _drawn(logits, 4000, temperature=1.5, **cut)
    assert torch.allclose(seen, (logits / 1.5).softmax(-1), atol=0.03)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_k": 2}, {1, 2}),
        ({"top_p": 0.6}, {1, 2}),  # 0.55 is too little, 0.55 + 0.25 enough
        ({"top_p": 0.5}, {1}),
        ({"min_p": 0.3}, {1, 2}),  # at least 0.3 x 0.55
        ({"top_k": 3, "top_p": 0.7}, {1, 2}),  # after top_k: 0.58 + 0.26
        ({"temperature": 1e-6}, {1}),
        ({}, {0, 1, 2, 3}),
        ({"top_k": 100, "min_p": 1.0}, {1}),
    ],
)
def test_cuts_keep_the_right_tokens(sampling: dict[str, Any], kept: set[int]) -> None:
    logits = torch.tensor([0.05, 0.55, 0.25, 0.15]).log()
    seen = _drawn(logits, 300, **{"temperature": 1.0, **sampling})
    assert {token for token, share in enumerate(seen) if share} == kept


@pytest.mark.parametrize("temperature", [1e-46, 5e-324])
@pytest.mark.parametrize("cut", [{}, {"top_k": 2}], ids=str)
def test_a_temperature_of_next_to_nothing_is_greedy(temperature: float, cut: dict[str, Any]) -> None:
    seen = _drawn(torch.tensor([1.0, 2.0, 1.999, -1.0]), 10, temperature=temperature, **cut)
    assert seen.equal(torch.tensor([0.0, 1.0, 0.0, 0.0]))


@pytest.mark.parametrize("temperature", [0, 1e-6], ids=["greedy", "drawn"])
def test_a_repetition_penalty_counts_what_the_context_holds_once(temperature: float) -> None:
    logits = torch.tensor([[3.0, 2.9, 2.0, -1.0], [3.0, 2.9, 2.0, -1.0], [-1.0, -1.05, -4.0, -4.0]])
    contexts = [np.array(ids, np.int64) for ids in ([0, 0, 0], [0, 1, 1], [0])]
    penalised = Sampling(temperature=temperature, repetition_penalty=1.2)
    samplers = [
        TokenSampler(penalised, 0),  # 3 / 1.2 = 2.5 is less than 2.9
        TokenSampler(penalised, 0, exempt=np.array([1])),
        TokenSampler(Sampling(temperature=temperature), 0, penalty=1.2),  # -1 x 1.2 is less than -1.05
    ]
    assert sample(logits.clone().numpy(), samplers, contexts) == [1, 1, 1]
    own_penalty = TokenSampler(Sampling(temperature=temperature, repetition_penalty=1), 0, penalty=1.2)
    assert sample(logits[:1].clone().numpy(), [own_penalty], contexts[:1]) == [0]
