r"""AlpacaEval: answers in both forms as the files that its own command judges.

    python -m pasta_async.evals.answers --backend http://127.0.0.1:30000 --prompts alpaca_eval.jsonl \
        --max-tokens 2048 --out results/answers.jsonl
    python -m pasta_async.evals.alpaca results/answers.jsonl --out results/alpaca
    alpaca_eval --model_outputs results/alpaca/parallel.json --reference_outputs results/alpaca/baseline.json

The last command is AlpacaEval's (`pip install alpaca-eval`, in an environment of its own). docs/evaluation.md
says what its figures mean here.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from pasta_async.cli.command import Command, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import FORMS
from pasta_async.evals.instruments import InstrumentSettings, read_forms


def write_outputs(answers: Path, out: Path) -> list[Path]:
    """Write a file of each form, in AlpacaEval's format, into a folder; returns the files.

    Raises:
        InvalidRequestError: The answers cannot be read or are not whole, or a prompt stands there twice.
    """
    _, forms = read_forms(answers, FORMS)
    text, count = Counter(one.question for one in forms["baseline"]).most_common(1)[0]
    if count > 1:  # AlpacaEval tells prompts apart by their text
        raise InvalidRequestError(f"{answers}: a prompt stands there {count} times: {text!r}")
    out.mkdir(parents=True, exist_ok=True)
    written = {form: out / f"{form}.json" for form in FORMS}
    for form, path in written.items():
        rows = [
            {"instruction": one.question, "output": one.text, "generator": form, "dataset": one.family}
            for one in forms[form]
        ]
        path.write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return [*written.values()]


def _run(settings: InstrumentSettings) -> str:
    plain, parallel = write_outputs(settings.answers, settings.out)
    return f"alpaca_eval --model_outputs {parallel} --reference_outputs {plain}"


main: Command = command(InstrumentSettings, _run, "alpaca", __doc__, positional=("answers",))

if __name__ == "__main__":
    main()
