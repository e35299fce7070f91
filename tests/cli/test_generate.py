"""`pasta-async generate`: its output, its files and its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pasta_async import Backend, RealClock
from pasta_async.testing import Fault, ScriptedBackend
from tests.helpers.cli_program import CAUSES, INTRO, TEXT, WRITTEN, Result, pasta, scripted


def generate(*arguments: str | Path, backend: Backend | None = None, stdin: str | bytes = "") -> Result:
    return pasta("generate", *arguments, backend=backend or scripted(), stdin=stdin)


def test_the_text_comes_out_without_tags() -> None:
    assert generate("Compare the wars.") == (0, TEXT + "\n", "")


@pytest.mark.parametrize(
    ("stdin", "prompt"),
    [
        ("From a pipe.", "From a pipe."),
        ("From a pipe.\n", "From a pipe."),
        ("From a pipe.\r\n", "From a pipe."),
        ("From a pipe.\n\n", "From a pipe.\n"),
        (b"\xef\xbb\xbfFrom a pipe.\n", "From a pipe."),
    ],
)
def test_a_dash_reads_standard_input(stdin: str | bytes, prompt: str) -> None:
    backend = ScriptedBackend({prompt: "Read."}, clock=RealClock())
    assert generate("-", backend=backend, stdin=stdin).out == "Read.\n"


def test_system_message_and_sampling_reach_the_backend() -> None:
    backend = scripted()
    result = generate(
        *("x", "--system", "Be brief.", "--temperature", "0.5", "--top-p", "0.9", "--top-k", "7"),
        *("--min-p", "0.1", "--repetition-penalty", "1.2", "--seed", "3", "--max-tokens", "900"),
        backend=backend,
    )
    assert result.code == 0
    sampling = backend.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 7, 0.1)
    assert sampling.repetition_penalty == 1.2
    assert (sampling.seed, sampling.max_tokens) == (3, 900)


def test_stop_texts_end_the_answer_and_may_hold_commas() -> None:
    assert generate("x", "--stop", "causes", "--stop", "wars").out == "Both \n"
    backend = ScriptedBackend("One,two, three.", clock=RealClock())
    assert generate("x", "--stop", ", ", backend=backend).out == "One,two\n"


def test_json_with_a_baseline_has_both_and_the_speedups() -> None:
    result = json.loads(generate("x", "--json", "--compare").out)
    answer, baseline = result["answer"], result["baseline"]
    assert answer["text"] == baseline["text"] == TEXT
    assert len(baseline["threads"]) == 1
    tokens = min(answer["text_tokens"] + 1, baseline["usage"]["completion_tokens"])
    assert result["theoretical_speedup"] == pytest.approx(tokens / answer["critical_path"])
    assert result["measured_speedup"] > 0


def test_compare_prints_the_text_then_the_timeline_and_the_numbers() -> None:
    text, timeline, numbers = generate("x", "--compare").out.split("\n\n")
    assert text == TEXT
    rows = [line.split("  ")[0].strip() for line in timeline.splitlines()]
    assert rows == ["main", "1 causes", "2 outcome", "baseline", ""]
    assert "on the critical path" in numbers
    assert "measured" in numbers


@pytest.mark.parametrize(
    "arguments",
    [
        ("x", "--temperature", "-1"),
        ("x", "--live", "--json"),
        ("x", "--template", "novalue"),
        ("",),
        ("x", "--seed", "one"),
        ("x", "--nonsense"),
        ("x", "--html", "/no/such/folder/page.html"),
        ("x", "--html", "/"),
    ],
)
def test_misuse_is_told_with_its_options_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    backend = scripted()
    result = generate(*arguments, backend=backend)
    assert (result.code, result.out) == (2, "")
    assert all(option in result.err for option in arguments if option.startswith("--"))
    assert not backend.requests


def test_a_failure_leaves_the_text_so_far_and_words_on_stderr() -> None:
    result = generate("x", backend=scripted(Fault(0, 3, "fail")))
    assert result.code == 1
    assert result.out.startswith("Both") and result.out.endswith("\n")
    assert result.err.startswith("pasta-async: ") and result.err.count("\n") == 1
    partial = json.loads(generate("x", "--json", backend=scripted(Fault(2, 2, "fail"))).out)
    assert partial["finish_reason"] == "error"
    assert partial["text"].startswith(INTRO)


# Files ------------------------------------------------------------------------------------------------------


def test_a_page_beside_the_text(tmp_path: Path) -> None:
    page = tmp_path / "answer.html"
    result = generate("Why <b>?", "--compare", "--html", page)
    assert result.code == 0
    assert result.out.startswith(TEXT + "\n")
    html = page.read_text("utf-8")
    assert "Why &lt;b&gt;?" in html
    assert f'<span data-thread="1">{CAUSES}</span>' in html


def test_the_page_loads_nothing_and_holds_hostile_text_as_text(tmp_path: Path) -> None:
    page = tmp_path / "answer.html"
    backend = ScriptedBackend("</script><script>alert(1)</script><!--", clock=RealClock())
    assert generate("</script>", "--html", page, backend=backend).code == 0
    html = page.read_text("utf-8")
    assert "alert(1)</script>" not in html
    scripts = ['<script type="application/json" id="data">', "<script>", "<script>"]
    assert re.findall(r"<script[^>]*>", html) == scripts
    assert not re.search(r'(src|href)=|@import|url\(|https?://(?!www\.w3\.org/2000/svg")', html)


# check ------------------------------------------------------------------------------------------------------


def test_findings_have_file_line_column_code_message_and_hint(tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("a", "b", "c")]
    for name, text in zip(names, ("One line.\nTwo <sync/> lines.", WRITTEN, "</async>"), strict=True):
        name.write_text(text)
    code, out, _ = pasta("check", *names)
    first, second = out.splitlines()
    assert (
        code,
        first,
    ) == (1, f"{names[0]}:2:5: sync-idle: <sync/> with no open promise; it is ignored (remove it)")
    assert second.startswith(str(names[2]))
    assert pasta("check", names[1]) == (0, "", "")
    assert pasta("check", "-", stdin="<sync/>").out.startswith("<stdin>:1:1: sync-idle: ")


def test_files_that_cannot_be_read_are_told_in_words(tmp_path: Path) -> None:
    missing = pasta("check", tmp_path / "missing")
    assert missing.code == 1
    assert missing.err.startswith("pasta-async: ") and str(tmp_path / "missing") in missing.err
    assert pasta("check", "-", stdin=b"ab\xff") == (1, "", "pasta-async: -: not UTF-8 at byte 2\n")
    assert pasta("check").code == 2
