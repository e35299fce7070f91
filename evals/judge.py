"""A judge of answers that is trained on preferences: a linear head on a frozen model's states.

    python -m pasta_async.evals.judge --model FOLDER --preferences pairs.jsonl --out runs/judge

It learns from pairs of answers (AlpacaEval's form) a reward of the mean of the model's hidden states.
`report.json` says how often it agrees with pairs on prompts that it did not learn from. `evals.quality
--judge FOLDER` asks the judge about answers, `training.score --judge pasta_async.evals.judge:TrainedJudge
--judge-model FOLDER` about samples.
"""

# numpy, torch and scikit-learn leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from pasta_async.backends.options import TorchDType
from pasta_async.cli.command import Command, CommandSettings, Count, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.statistics import estimate
from pasta_async.model_folder import write_json
from pasta_async.progress import progress
from pasta_async.protocol import Message
from pasta_async.tokenizer import Tokenizer
from pasta_async.training.data.corpus import digest, read_lines
from pasta_async.training.jobs import Journal
from pasta_async.training.judging import ModelJudge
from pasta_async.training.model_digest import model_digest
from pasta_async.training.samples import SampledPrompt

Array = NDArray[Any]
FOLDS = 5  # parts of the prompts; each is judged by weights that were learned from the others


class TrainSettings(CommandSettings):
    """Settings of the training."""

    model: Path = Field(description="folder of the model that reads: a Llama, Qwen2 or Qwen3")
    preferences: tuple[Path, ...] = Field(
        min_length=1, description="JSON lines: instruction, output_1, output_2, preference (1 to 2)"
    )
    out: Path = Field(description="folder of the judge; an interrupted run goes on from what it has")
    penalty: float = Field(default=10.0, gt=0, description="of large weights (ridge)")
    tokens: Count = Field(default=512, description="tokens of a prompt, and of an answer, that are read")
    dtype: TorchDType = Field(
        default="auto", description="that the model reads in; auto: bfloat16 on CUDA, else float32"
    )


class Preference(BaseModel, frozen=True):
    """Two answers to a prompt: a line of a preference file. AlpacaEval's further fields are ignored."""

    instruction: str = Field(min_length=1)
    output_1: str
    output_2: str
    preference: float | None = Field(ge=0, le=2)
    """1 if the first answer is better, to 2 if the second is; 1.5, 0 and null are ties."""

    @property
    def answers(self) -> tuple[str, str]:
        """The better answer and the worse one."""
        in_order = (self.preference or 1.5) < 1.5
        return (self.output_1, self.output_2) if in_order else (self.output_2, self.output_1)

    @property
    def length(self) -> float:
        """Logarithm of the ratio of their characters: above 0 if the better one is longer."""
        better, worse = self.answers
        return math.log((len(better) + 1) / (len(worse) + 1))

    @property
    def decided(self) -> bool:
        """True if this is neither a tie nor a comparison with an empty or equal answer."""
        texts = {self.output_1.strip(), self.output_2.strip()}
        return self.preference not in (None, 0, 1.5) and len(texts - {""}) == 2


class Reader:
    """A frozen model that reads the first `tokens` of answers.

    Raises:
        UnsupportedModelError: The folder cannot be used.
    """

    def __init__(self, folder: Path, tokens: int, dtype: TorchDType) -> None:
        from transformers import AutoModel

        from pasta_async.training.likelihood import load_frozen

        self._model: Any = load_frozen(AutoModel, folder, dtype)
        self._tokenizer = Tokenizer.from_folder(folder)
        self._tokens = tokens

    def read(self, messages: Sequence[Message], text: str) -> Array:
        """Mean hidden state of an answer's tokens: [hidden], float32. A long prompt is read at both ends."""
        import torch

        prompt = self._tokenizer.encode_chat(messages, {})
        answer = self._tokenizer.encode(text)
        if len(prompt) > self._tokens:
            prompt = prompt[: self._tokens // 2] + prompt[len(prompt) - self._tokens // 2 :]
        # An answer that is read whole ends with the end-of-text.
        answer = [*answer, *self._tokenizer.end_ids[:1]][: self._tokens]
        with torch.inference_mode():
            ids = torch.tensor([prompt + answer], device=self._model.device)
            states = self._model(input_ids=ids, use_cache=False).last_hidden_state[0, len(prompt) :]
            return states.float().mean(0).cpu().numpy()


def fit_weights(differences: Array, lengths: Array, penalty: float) -> Array:
    """Weights of a reward, [features], by Bradley and Terry's model (1952): ridge logistic regression.

    The better answer wins with probability sigmoid(weights @ difference + b * length), where `differences`
    are of features, [pairs, features], better less worse. A reward leaves b out, so that what preferences
    owe to length alone is not put down to quality.
    """
    from sklearn.linear_model import LogisticRegression

    scale = np.sqrt((differences**2).mean(0) * differences.shape[1])
    scale[scale == 0] = 1.0
    # The factor keeps the penalty from b. Each pair stands there in both orders: no intercept.
    columns = np.concatenate([differences / scale, 10 * lengths[:, None]], axis=1)
    model = LogisticRegression(C=0.5 / penalty, fit_intercept=False, max_iter=2000)
    model.fit(np.concatenate([columns, -columns]), np.repeat([True, False], len(columns)))
    return model.coef_[0, :-1] / scale


def agreement(pairs: Sequence[Preference], rewards: Array) -> dict[str, Any]:
    """Percent of pairs whose better answer has the higher reward, and of those in which it is the longer one.

    `rewards` are differences, [pairs]; one of 0 is right half of the time. Intervals are over prompts.
    """
    prompts = [pair.instruction for pair in pairs]
    shares = {"judge": rewards, "longer": np.array([pair.length for pair in pairs])}
    figures = {
        name: estimate((50 + 50 * np.sign(values)).tolist(), "arithmetic", clusters=prompts)
        for name, values in shares.items()
    }
    return {"pairs": len(pairs), "prompts": len(set(prompts)), **figures}


def train(settings: TrainSettings) -> dict[str, Any]:
    """Train a judge and write its folder; the report, which is in it.

    Raises:
        PastaError: The preferences or the model cannot be used, or OUT has features of something else.
    """
    from sklearn.model_selection import GroupKFold

    from pasta_async.training.likelihood import read_by

    rows = [row for path in settings.preferences for _, row in read_lines(path, Preference)]
    pairs = [row for row in rows if row.decided]
    prompts = [pair.instruction for pair in pairs]
    if len({*prompts}) < FOLDS:
        raise InvalidRequestError(f"pairs on {len({*prompts})} prompts are too few: it takes {FOLDS}")
    # What a feature depends on besides the text.
    identity = {**read_by(settings.model, settings.dtype), "tokens": settings.tokens}
    features = _read_answers(settings, pairs, identity)
    better = [features[pair.instruction, pair.answers[0]] for pair in pairs]
    worse = [features[pair.instruction, pair.answers[1]] for pair in pairs]
    differences = np.stack(better) - np.stack(worse)
    lengths = np.array([pair.length for pair in pairs])
    # Each fold's rewards come from weights that have not seen its prompts.
    rewards = np.zeros(len(pairs))
    for seen, unseen in GroupKFold(FOLDS).split(differences, groups=prompts):
        weights = fit_weights(differences[seen], lengths[seen], settings.penalty)
        rewards[unseen] = differences[unseen] @ weights
    # The factor by which differences of rewards are log-odds; a judge worse than a coin gives no verdict.
    factor = max(0.0, float(fit_weights(rewards[:, None], lengths, 0.1)[0]))
    weights = factor * fit_weights(differences, lengths, settings.penalty)
    save_file({"weights": weights}, settings.out / "judge.safetensors")
    write_json(settings.out / "judge.json", {"folder": str(settings.model.resolve()), **identity})
    report = {"left_out": len(rows) - len(pairs), "unseen prompts": agreement(pairs, rewards)}
    write_json(settings.out / "report.json", {**settings.model_dump(mode="json"), **report})
    return report


def _read_answers(
    settings: TrainSettings, pairs: Sequence[Preference], identity: dict[str, Any]
) -> dict[tuple[str, str], Array]:
    """Features of each prompt and answer: [hidden]. Those in the journal are not computed again."""
    answers = dict.fromkeys((pair.instruction, text) for pair in pairs for text in pair.answers)
    with Journal(settings.out / "features.jsonl", identity) as journal:
        stored = {row["key"]: row["features"] for row in journal.rows}
        reader = Reader(settings.model, settings.tokens, settings.dtype)
        features: dict[tuple[str, str], Array] = {}
        with progress(len(answers), "answers") as advance:
            for prompt, text in answers:
                messages: tuple[Message, ...] = ({"role": "user", "content": prompt},)
                key = digest(messages, text)
                if key not in stored:
                    stored[key] = reader.read(messages, text).tolist()
                    journal.append({"key": key, "features": stored[key]})
                features[prompt, text] = np.array(stored[key], np.float32)
                advance()
    return features


class TrainedJudge(ModelJudge):
    """A trained judge, in the folder that `train` wrote; the journal keeps rewards that were computed.

    Raises:
        InvalidRequestError: The folder holds no judge, or the model that it reads by is another one now.
    """

    sees_faults = False

    def __init__(self, folder: Path | str, journal: Journal) -> None:
        super().__init__(journal)
        try:
            judge: dict[str, Any] = json.loads((Path(folder) / "judge.json").read_text("utf-8"))
            self._weights: Array = load_file(Path(folder) / "judge.safetensors")["weights"]
            model, tokens, dtype = Path(judge["folder"]), judge["tokens"], judge["dtype"]
            same = (model / "config.json").is_file() and model_digest(model) == judge["model"]
        except (OSError, ValueError, LookupError, SafetensorError) as error:
            advice = "make one with python -m pasta_async.evals.judge"
            raise InvalidRequestError(f"{folder} holds no trained judge ({error!r}): {advice}") from error
        if not same:
            raise InvalidRequestError(f"{folder}: the model that it reads by, {model}, is gone, or another")
        self._reader = Reader(model, tokens, dtype)

    def compute(self, messages: Sequence[Message], texts: Sequence[str]) -> list[float]:
        """Rewards of answers to one prompt."""
        return [float(self._reader.read(messages, text) @ self._weights) for text in texts]

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """Probability that an answer is better than the baseline's, were both equally long; 0 if it is empty.

        After a cancellation the computation under way ends by itself, unused.
        """
        other = prompt.baseline.text
        if text == other or not (text.strip() or other.strip()):
            return 0.5
        if not text.strip() or not other.strip():
            return 1.0 if text.strip() else 0.0
        rewards = await self.figures(prompt, (text, other))
        return 0.5 + 0.5 * math.tanh(((rewards[text] or 0.0) - (rewards[other] or 0.0)) / 2)


main: Command = command(TrainSettings, train, "judge", __doc__, resumes=True)

if __name__ == "__main__":
    main()
