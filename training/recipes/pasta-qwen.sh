#!/bin/sh
# pasta-qwen: Qwen2.5-Coder-1.5B-Instruct learns to promise the items of its lists, from its own answers.
# Every command goes on where it was interrupted: after Ctrl-C or a crash, run the whole script again.
#
#   BASE  folder of a chat model (Llama, Qwen2 or Qwen3). pasta-qwen's own:
#         pasta-async pull qwen-1.5b && pasta-async export qwen-1.5b qwen
#   NAME  name of the base on the Hugging Face hub, for the adapter that ships.
#   OUT   folder that everything is written to.
#
# The working directory has alpaca_eval.jsonl and ifeval.jsonl, which the prompts are kept apart from, and dolly.jsonl.gz,
# prompts that other people typed. Without Dolly's leave out the command that reads them, and its `--prompts`; without the
# others the options `--against`.
#
# The minutes of the answers are those of 592 prompts, on two cores of an AMD EPYC (Zen 3), which has no bfloat16; the defaults are 740.
set -eu

BASE=${BASE:-qwen}
NAME=${NAME:-Qwen/Qwen2.5-Coder-1.5B-Instruct}
OUT=${OUT:-runs/pasta-qwen}
PROMPTS=${PROMPTS:-$(dirname "$0")/../data/prompts.jsonl.gz}
OURS=${OURS:-540}      # prompts of PROMPTS
DOLLY=${DOLLY:-200}    # of Dolly's
PLAIN=${PLAIN:-64}     # answers that stay plain
UPDATES=${UPDATES:-0}  # of the training; 0: as many as the data have

# Families of prompts whose answers have independent parts; to promise in the others, stories say, would be wrong.
PARTS='"id":"(advice|causes|compare|explain|ideas|kinds|plan|pros_and_cons|questions|several|tips)/'

corpus() {
    python -m pasta_async.training.data.corpus --prompts-only --against alpaca_eval.jsonl --against ifeval.jsonl "$@"
}
answer() {
    python -m pasta_async.training.answers --backend "local:$BASE" --temperature 0.6 --max-tokens 380 \
        --together 16 "$@"
}

corpus --data "$PROMPTS" --limit "$OURS" --out "$OUT/ours.jsonl"
corpus --data dolly.jsonl.gz --limit "$DOLLY" --out "$OUT/dolly.jsonl"
grep -E "$PARTS" "$OUT/ours.jsonl" >"$OUT/parts.jsonl"
grep -vE "$PARTS" "$OUT/ours.jsonl" >"$OUT/whole.jsonl"

# 60 minutes: the base's own answers, so that its knowledge stays as it is. Three of four are kept.
answer --prompts "$OUT/parts.jsonl" --prompts "$OUT/dolly.jsonl" --out "$OUT/answers.jsonl"
answer --prompts "$OUT/whole.jsonl" --out "$OUT/plain.jsonl"

# Annotation by the structure of lists. Two thirds of the examples promise, one third do not. The last item ends with
# an empty line as the others do: no item knows that it is the last. (What ships was cut by the
# base's own count of tokens; `--least` is a rough count now.)
python -m pasta_async.training.data.annotate --by structure --cut lists --least 12 \
    --data "$OUT/answers.jsonl" --out "$OUT/annotated"
grep '<promise' "$OUT/annotated/annotated.jsonl" | sed 's|</async>","|\\n\\n</async>","|' >"$OUT/train.jsonl"
head -n "$PLAIN" "$OUT/plain.jsonl" >>"$OUT/train.jsonl"

# Stage 1, about 90 minutes for 60 updates in float32 (what ships took 60, by code with 8-bit matrices that is not here, and 8 more for a
# second part: docs/models.md). One adapter learns both forms, answers with tags and a quarter of them without.
python -m pasta_async.training.sft --model "$BASE" --data "$OUT/train.jsonl" --form both --plain-every 4 \
    --estimates none --epochs 1 --steps "$UPDATES" --batch 4 --lora-rank 8 --lora-alpha 16 --lr 3e-4 \
    --tag-rate 20 --warmup 8 --out "$OUT/stage1"

# The folder that ships: float16, with the settings that users get.
python -m pasta_async.training.ship --adapter "$OUT/stage1/adapter" --base "$BASE" \
    --base-name "$NAME" --repetition-penalty 1.05 --suppress-estimates \
    --out "$OUT/shipped"

echo "the adapter is in $OUT/shipped: measure local:$OUT/shipped (docs/training.md says how it finds its base); $OUT/stage1/model has no repetition penalty"
