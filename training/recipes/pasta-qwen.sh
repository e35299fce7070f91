#!/bin/sh
# pasta-qwen: Qwen2.5-Coder-1.5B-Instruct learns to promise what is independent in its own answers.
# Every command goes on where it was interrupted: after Ctrl-C or a crash, run the whole script again.
#
#   BASE  folder of a chat model (Llama, Qwen2 or Qwen3). pasta-qwen's own:
#         pasta-async pull qwen-1.5b && pasta-async export qwen-1.5b qwen --dtype bfloat16
#   NAME  name of the base on the Hugging Face hub, for the adapter that ships.
#   JUDGE folder of the model that says what is independent, and how likely a sample is: BASE, or a smaller one of its
#         family. pasta-qwen's own:
#         pasta-async pull qwen-0.5b && pasta-async export qwen-0.5b judge --dtype bfloat16
#   DTYPE bfloat16 where the CPU has instructions for it, else float32.
#   OUT   folder that everything is written to.
#
# The working directory has alpaca_eval.jsonl and ifeval.jsonl, which the prompts are kept apart from, and dolly.jsonl.gz,
# prompts that other people typed. Without Dolly's leave out the two commands that read them, and the two `--prompts`
# with their files; without the others the options `--against`.
#
# The minutes are those of two cores of an AMD EPYC (Zen 4), which has bfloat16; all together some six hours.
set -eu

BASE=${BASE:-qwen}
NAME=${NAME:-Qwen/Qwen2.5-Coder-1.5B-Instruct}
JUDGE=${JUDGE:-judge}
DTYPE=${DTYPE:-bfloat16}
OUT=${OUT:-runs/pasta-qwen}
PROMPTS=${PROMPTS:-$(dirname "$0")/../data/prompts.jsonl.gz}
OURS=${OURS:-1550}     # prompts of PROMPTS for stage 1; those behind them are for stage 2
DOLLY=${DOLLY:-650}    # of Dolly's

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

# 40 minutes: the base's own answers, so that its knowledge stays as it is. Seven of ten are kept.
answer --prompts "$OUT/parts.jsonl" --prompts "$OUT/dolly.jsonl" --out "$OUT/answers.jsonl"
answer --prompts "$OUT/whole.jsonl" --out "$OUT/plain.jsonl"

# 40 minutes: annotation by likelihood. Items of lists, paragraphs and introductions are promised where hiding them from
# what follows costs little. All chunks end with an empty line: no item knows that it is the last. Of 1,269 answers 533 promise.
annotate() {
    python -m pasta_async.training.data.annotate --by likelihood --model "$JUDGE" --dtype "$DTYPE" --cut blocks --least 12 \
        --tau 0.5 --item-slack 2.5 --sync-tau 2.5 --blank-lines --data "$OUT/answers.jsonl" "$@"
}
annotate --out "$OUT/annotated"

# Two thirds of the examples promise, one third do not: they have no independent parts, or their prompts want none. There are
# two lots, since the second one was annotated later.
grep '<promise' "$OUT/annotated/annotated.jsonl" >"$OUT/promising.jsonl"
grep -v '<promise' "$OUT/annotated/annotated.jsonl" >"$OUT/unpromising.jsonl"
lot() { # NAME, lines of the answers that promise, lines of each of the two kinds that do not
    sed -n "$2p" "$OUT/promising.jsonl" >"$OUT/$1.jsonl"
    sed -n "$3p" "$OUT/unpromising.jsonl" >>"$OUT/$1.jsonl"
    sed -n "$3p" "$OUT/plain.jsonl" >>"$OUT/$1.jsonl"
}
lot lot1 1,340 1,85
lot lot2 '341,$' 86,133

# Stage 1, 55 minutes for 144 updates. One adapter learns both forms, answers with tags and an eighth of them without.
learn() {
    python -m pasta_async.training.sft --form both --plain-every 8 --estimates none --epochs 1 --batch 4 --tag-rate 20 \
        --warmup 8 --dtype "$DTYPE" --save-every 10 --drop-long "$@"
}
learn --model "$BASE" --lora-rank 8 --lora-alpha 16 --lr 3e-4 --data "$OUT/lot1.jsonl" --out "$OUT/lot1"

# 60 minutes for 140 updates: lists of both lots, in which heads are bold and topics tell which items have one. The costs of this
# annotation are in the journal of the other one. (What ships saw lists of the first lot that were drawn at random.)
mkdir -p "$OUT/bold"
[ -s "$OUT/bold/journal.jsonl" ] || cp "$OUT/annotated/journal.jsonl" "$OUT/bold/"
annotate --bold-heads --out "$OUT/bold"
ITEM='([0-9][.)]|[-*+]) *<promise'
grep -E "$ITEM.*$ITEM" "$OUT/bold/annotated.jsonl" | tail -n 345 >"$OUT/heads.jsonl"
grep '<promise' "$OUT/bold/annotated.jsonl" | grep -vE "$ITEM.*$ITEM" | head -n 25 >>"$OUT/heads.jsonl"
sed -n 71,133p "$OUT/unpromising.jsonl" >>"$OUT/heads.jsonl"
sed -n 71,133p "$OUT/plain.jsonl" >>"$OUT/heads.jsonl"
learn --model "$OUT/lot1/adapter" --lr 2e-4 --data "$OUT/heads.jsonl" --out "$OUT/heads"

# The folder that ships: float16, with the settings that users get.
ship() { # adapter, folder
    python -m pasta_async.training.ship --adapter "$1" --base "$BASE" --base-name "$NAME" --repetition-penalty 1.05 \
        --suppress-estimates --out "$2"
}
ship "$OUT/heads/adapter" "$OUT/shipped"

# What follows was tried from the first lot on, and does not ship: it makes answers more parallel and less readable.
# docs/models.md has the figures. 37 minutes for 82 updates:
learn --model "$OUT/lot1/adapter" --lr 2e-4 --data "$OUT/lot2.jsonl" --out "$OUT/stage1"

# Stage 2, two rounds: ten samples of each of some fresh prompts (51 and 34 minutes), their scores (14 and 10), and training on
# the best (16 and 11). Other weights of quality are further runs of `prefer` on the same scores.
fresh() { # NAME, prompts of ours and of Dolly's to skip, and to take
    corpus --data "$PROMPTS" --skip $((OURS + $2)) --limit "$3" --out "$OUT/$1_ours.jsonl"
    corpus --data dolly.jsonl.gz --skip $((DOLLY + $4)) --limit "$5" --out "$OUT/$1_dolly.jsonl"
}
fresh fresh1 0 173 0 67
fresh fresh2 173 117 67 43
before=stage1
for round in 1 2; do
    python -m pasta_async.training.sample --backend "local:$OUT/$before/model" --prompts "$OUT/fresh${round}_ours.jsonl" \
        --prompts "$OUT/fresh${round}_dolly.jsonl" --n 10 --max-tokens 400 --temperature 0.7 --plain-temperature 0.6 \
        --repetition-penalty 1 --together 32 --out "$OUT/samples$round.jsonl"
    python -m pasta_async.training.score --samples "$OUT/samples$round.jsonl" --judge likelihood --judge-model "$JUDGE" \
        --dtype "$DTYPE" --sound-only --out "$OUT/scores$round.jsonl"
    python -m pasta_async.training.prefer --model "$OUT/$before/adapter" --samples "$OUT/samples$round.jsonl" \
        --scores "$OUT/scores$round.jsonl" --quality-weight 4 --sound-only --epochs 1 --batch 4 --lr 1.5e-4 --warmup 3 \
        --dtype "$DTYPE" --save-every 10 --drop-long --out "$OUT/round$round"
    before=round$round
done
ship "$OUT/round2/adapter" "$OUT/round2/shipped"

echo "the adapter is in $OUT/shipped: measure local:$OUT/shipped (docs/training.md says how it finds its base)"
