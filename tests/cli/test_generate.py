"""`pasta-async generate`: what it prints where, and with which exit code."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest
from typer.testing import CliRunner, Result
from written import END, INTRO, OUTCOME, TEXT, WRITTEN, scripted

from pasta_async import Backend, Model, RealClock
from pasta_async.backends.local import LocalBackend
from pasta_async.cli.app import app
from pasta_async.lang import parse
from pasta_async.testing import Fault, ScriptedBackend
from tests.pasta_tiny import PASTA_TINY


def generate(*arguments: str, backend: Backend | None = None, stdin: str | None = None) -> Result:
    return CliRunner().invoke(
        app, ["generate", *arguments], obj=backend or scripted(), input=stdin, catch_exceptions=False
    )


def test_the_text_comes_out_without_tags() -> None:
    result = generate("Compare the wars.")
    assert (result.exit_code, result.stdout, result.stderr) == (0, TEXT + "\n", "")


def test_a_dash_reads_standard_input() -> None:
    backend = ScriptedBackend({"From a pipe.": "Read."}, clock=RealClock())
    assert generate("-", backend=backend, stdin="From a pipe.").stdout == "Read.\n"


def test_system_message_and_sampling_reach_the_backend() -> None:
    backend = scripted()
    result = generate(
        *("x", "--system", "Be brief.", "--temperature", "0.5", "--top-p", "0.9", "--top-k", "7"),
        *("--min-p", "0.1", "--repetition-penalty", "1.2", "--seed", "3", "--max-tokens", "900"),
        backend=backend,
    )
    assert result.exit_code == 0
    sampling = backend.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 7, 0.1)
    assert sampling.repetition_penalty == 1.2
    assert (sampling.seed, sampling.max_tokens) == (3, 900)
    assert "Be brief." in asyncio.run(backend.detokenize(backend.requests[0].ids))


def test_a_server_that_says_nothing_costs_no_more_than_the_timeout() -> None:
    class Silent(ScriptedBackend):
        async def connect(self) -> Model:
            await asyncio.Event().wait()
            raise AssertionError

    result = generate("x", "--timeout", "0.05", backend=Silent("never", clock=RealClock()))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "0.05" in result.stderr


def test_stop_texts_end_the_answer() -> None:
    assert generate("x", "--stop", "causes", "--stop", "wars").stdout == "Both \n"


def test_json_is_the_generation() -> None:
    result = generate("x", "--json")
    answer = json.loads(result.stdout)
    assert answer["text"] == TEXT
    assert parse(answer["document"]) == parse(WRITTEN)
    assert [thread["topic"] for thread in answer["threads"]] == ["", "causes", "outcome"]
    assert answer["finish_reason"] == "stop"
    assert answer["text_speedup"] == pytest.approx(answer["text_tokens"] / answer["critical_path"])


def test_json_with_a_baseline_has_both_and_the_speedups() -> None:
    result = json.loads(generate("x", "--json", "--compare").stdout)
    answer, baseline = result["answer"], result["baseline"]
    assert answer["text"] == baseline["text"] == TEXT
    assert len(baseline["threads"]) == 1
    tokens = baseline["usage"]["completion_tokens"]
    assert result["theoretical_speedup"] == pytest.approx(tokens / answer["critical_path"])
    assert result["measured_speedup"] == pytest.approx(baseline["elapsed"] / answer["elapsed"])


def test_compare_prints_the_text_then_the_timeline_and_the_numbers() -> None:
    text, timeline, numbers = generate("x", "--compare").stdout.split("\n\n")
    assert text == TEXT
    rows = [line.split("  ")[0].strip() for line in timeline.splitlines()]
    assert rows == ["main", "1 causes", "2 outcome", "baseline", ""]
    assert "on the critical path" in numbers
    assert "measured" in numbers


def test_the_baseline_cannot_shift_what_the_prompt_means() -> None:
    """Tags that somebody types are data: they reach the model as they were typed, and start nothing."""
    backend = ScriptedBackend({"<sync/> <async>": "Fine."}, clock=RealClock())
    assert generate("<sync/> <async>", backend=backend).stdout == "Fine.\n"
    assert len(backend.requests) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("x", "--temperature", "-1"),
        ("x", "--max-threads", "0"),
        ("x", "--live", "--json"),
        ("x", "--template", "novalue"),
        ("",),
        ("x", "--seed", "one"),
    ],
)
def test_misuse_is_told_with_its_options_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = generate(*arguments)
    assert result.exit_code == 2
    assert all(option in result.stderr for option in arguments if option.startswith("--"))
    assert result.stdout == ""


def test_an_unknown_backend_is_a_misuse() -> None:
    result = CliRunner().invoke(app, ["generate", "x", "--backend", "gopher:hole"])
    assert result.exit_code == 2
    assert "gopher:hole" in result.stderr


def test_a_failure_leaves_the_text_so_far_and_words_on_stderr() -> None:
    result = generate("x", backend=scripted(Fault(0, 3, "fail")))
    assert result.exit_code == 1
    assert result.stdout.startswith("Both")
    assert result.stdout.endswith("\n")
    assert result.stderr.startswith("pasta-async: ") and result.stderr.count("\n") == 1


def test_a_failure_leaves_the_json_so_far() -> None:
    result = generate("x", "--json", backend=scripted(Fault(2, 2, "fail")))
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["finish_reason"] == "error"
    assert answer["text"].startswith(INTRO)


def test_a_computation_that_is_not_exact_is_told() -> None:
    half = LocalBackend(PASTA_TINY, dtype="bfloat16", device="cpu")
    inexact = generate("x", "--max-tokens", "2", backend=half)
    assert inexact.stderr == "pasta-async: pasta-tiny is computed in bfloat16\n"
    exact = generate("x", "--max-tokens", "2", backend=LocalBackend(PASTA_TINY, device="cpu"))
    assert (exact.exit_code, exact.stderr) == (0, "")


def test_a_seed_that_cannot_be_honoured_is_noted() -> None:
    backend = ScriptedBackend(WRITTEN, clock=RealClock(), honours_seeds=False)
    result = generate("x", "--seed", "1", "--temperature", "1", backend=backend)
    assert (result.exit_code, result.stdout) == (0, TEXT + "\n")
    assert result.stderr.startswith("pasta-async: note: ")


class PressesCtrlC(RealClock):
    """Sends this process the signal of Ctrl-C before the n-th token of an answer; time takes no time."""

    def __init__(self, n: int) -> None:
        self.left = n

    async def sleep(self, seconds: float) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)


def tokens_of_the_answer() -> int:
    backend = scripted()
    generate("x", backend=backend)
    return sum(len(play.ids) for play in backend.played)


@pytest.mark.parametrize("form", ["--json", "--live", None])
@pytest.mark.parametrize("n", range(1, tokens_of_the_answer(), 4))
def test_ctrl_c_at_any_token_leaves_the_text_so_far(n: int, form: str | None) -> None:
    backend = ScriptedBackend(WRITTEN, clock=PressesCtrlC(n), latency=1.0)
    result = generate("x", *([form] if form else []), backend=backend)
    assert result.exit_code == 130
    assert result.stderr.count("\n") == 1
    text = json.loads(result.stdout)["text"] if form == "--json" else result.stdout.removesuffix("\n")
    assert is_so_far(text)
    assert not backend.open


def is_so_far(text: str) -> bool:
    """Whether a text is the answer with the ends of its unfinished parts missing."""
    if TEXT.startswith(text):
        return True
    before, outcome, end = text.partition(OUTCOME[:4])
    return TEXT.startswith(before.split(END[:8])[0]) and (OUTCOME + END).startswith(outcome + end[:1])


def test_the_rule_above_refuses_other_texts() -> None:
    assert not is_so_far("Something else.")
