#!/bin/sh
# pasta-qwen: Qwen2.5-Coder-1.5B-Instruct learns to promise what is independent in its own answers.
# Every command goes on where it was interrupted: after Ctrl-C or a crash, run the whole script again.
#
#   BASE  folder of a chat model (Llama, Qwen2 or Qwen3). pasta-qwen's own:
#         pasta-async pull qwen-1.5b && pasta-async export qwen-1.5b qwen --dtype bfloat16
#   NAME  name of the base on the Hugging Face hub, for the adapter that ships.
#   JUDGE folder of the model that says what is independent: BASE, or a smaller one of its family. pasta-qwen's own:
#         pasta-async pull qwen-0.5b && pasta-async export qwen-0.5b judge --dtype bfloat16
#   DTYPE bfloat16 where the CPU has instructions for it, else float32.
#   OUT   folder that everything is written to.
#
# The working directory has alpaca_eval.jsonl and ifeval.jsonl, which the prompts are kept apart from, and dolly.jsonl.gz,
# prompts that other people typed. Without Dolly's leave out the command that reads them, and its `--prompts`; without the
# others the options `--against`.
#
# The minutes are those of two cores of an AMD EPYC (Zen 4), which has bfloat16.
set -eu

BASE=${BASE:-qwen}
NAME=${NAME:-Qwen/Qwen2.5-Coder-1.5B-Instruct}
JUDGE=${JUDGE:-judge}
DTYPE=${DTYPE:-bfloat16}
OUT=${OUT:-runs/pasta-qwen}
PROMPTS=${PROMPTS:-$(dirname "$0")/../data/prompts.jsonl.gz}
OURS=${OURS:-1270}     # prompts of PROMPTS
DOLLY=${DOLLY:-540}    # of Dolly's
PLAIN=${PLAIN:-85}     # answers that stay plain, of each of two kinds
UPDATES=${UPDATES:-0}  # of the training; 0: as many as the data have

# Families of prompts most of whose answers have independent parts. Answers of the others stay plain: to promise in stories,
# say, would be wrong.
PARTS='"id":"(advice|causes|compare|explain|ideas|kinds|plan|pros_and_cons|questions|several|tips)/'

corpus() {
    python -m pasta_async.training.data.corpus --prompts-only --against alpaca_eval.jsonl --against ifeval.jsonl "$@"
}
answer() {
    python -m pasta_async.training.answers --backend "local:$BASE" --temperature 0.6 --max-tokens 380 \
        --together 32 "$@"
}

corpus --data "$PROMPTS" --limit "$OURS" --out "$OUT/ours.jsonl"
corpus --data dolly.jsonl.gz --limit "$DOLLY" --out "$OUT/dolly.jsonl"
grep -E "$PARTS" "$OUT/ours.jsonl" >"$OUT/parts.jsonl"
grep -vE "$PARTS" "$OUT/ours.jsonl" >"$OUT/whole.jsonl"

# 33 minutes: the base's own answers, so that its knowledge stays as it is. Seven of ten are kept.
answer --prompts "$OUT/parts.jsonl" --prompts "$OUT/dolly.jsonl" --out "$OUT/answers.jsonl"
answer --prompts "$OUT/whole.jsonl" --out "$OUT/plain.jsonl"

# 25 minutes: annotation by likelihood. Items of lists, paragraphs and introductions are promised where hiding them from
# what follows costs little. All chunks end with an empty line: no item knows that it is the last. (What ships has seen the
# first 827 of 1,054 answers, of which 340 promise.)
python -m pasta_async.training.data.annotate --by likelihood --model "$JUDGE" --dtype "$DTYPE" --cut blocks --least 12 \
    --tau 0.5 --item-slack 2.5 --sync-tau 2.5 --blank-lines --data "$OUT/answers.jsonl" --out "$OUT/annotated"

# Two thirds of the examples promise, one third do not: they have no independent parts, or their prompts want none.
grep '<promise' "$OUT/annotated/annotated.jsonl" >"$OUT/train.jsonl"
grep -v '<promise' "$OUT/annotated/annotated.jsonl" | head -n "$PLAIN" >>"$OUT/train.jsonl"
head -n "$PLAIN" "$OUT/plain.jsonl" >>"$OUT/train.jsonl"

# Stage 1, 54 minutes for 144 updates. One adapter learns both forms, answers with tags and an eighth of them without.
python -m pasta_async.training.sft --model "$BASE" --data "$OUT/train.jsonl" --form both --plain-every 8 \
    --estimates none --epochs 1 --steps "$UPDATES" --batch 4 --lora-rank 8 --lora-alpha 16 --lr 3e-4 \
    --tag-rate 20 --warmup 8 --dtype "$DTYPE" --save-every 10 --drop-long --out "$OUT/stage1"

# The folder that ships: float16, with the settings that users get.
python -m pasta_async.training.ship --adapter "$OUT/stage1/adapter" --base "$BASE" \
    --base-name "$NAME" --repetition-penalty 1.05 --suppress-estimates \
    --out "$OUT/shipped"

echo "the adapter is in $OUT/shipped: measure local:$OUT/shipped (docs/training.md says how it finds its base); $OUT/stage1/model has no repetition penalty"
