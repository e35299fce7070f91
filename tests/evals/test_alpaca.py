"""AlpacaEval's own command compares what quality writes; its judge is a server that knows the answers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from chat_server import judging
from commands_run import run, write_rows

from pasta_async.evals.answers import Answer
from pasta_async.evals.quality import main


@pytest.mark.timeout(300)  # it takes many seconds of CPU to import
def test_alpaca_eval_reads_the_answers_and_finds_the_known_win_rate(tmp_path: Path) -> None:
    rows = [
        Answer(number, form, text=f"{form} answer {number}", question=f"What is {number}?")
        for number in range(8)
        for form in ("baseline", "parallel")
    ]
    write_rows(tmp_path / "answers.jsonl", [{"made": "up"}, *map(asdict, rows)])
    run(main, f"--answers {tmp_path}/answers.jsonl --out {tmp_path}")
    better = {f"parallel answer {number}" for number in range(6)} | {"baseline answer 6", "baseline answer 7"}
    files = {"model_outputs": "parallel", "reference_outputs": "baseline"}
    options = [f"--{option}={tmp_path}/alpaca/{form}.json" for option, form in files.items()]
    with judging(lambda first, second: 0.9 if first in better else 0.1) as (_, url):
        environment = {**os.environ, "OPENAI_API_BASE": url, "OPENAI_API_KEY": "none"}
        program = Path(sys.executable).with_name("alpaca_eval")
        # Length control gets its data from the Hugging Face hub.
        options += ["--fn_metric=get_winrate", "--sort_by=win_rate", f"--output_path={tmp_path}/alpaca"]
        subprocess.run([program, *options], env=environment, cwd=tmp_path, check=True, capture_output=True)
    [table] = (tmp_path / "alpaca").rglob("leaderboard.csv")
    header, values = (line.split(",") for line in table.read_text().splitlines())
    assert float(values[header.index("win_rate")]) == pytest.approx(100 * (6 * 0.9 + 2 * 0.1) / 8)
