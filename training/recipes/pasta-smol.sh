#!/bin/sh
# pasta-smol: a small chat model learns PASTA-LANG from its own answers, without an annotator or a large judge.
# Every command goes on where it was interrupted: after Ctrl-C or a crash, run the whole script again.
#
#   BASE  folder of a chat model (Llama, Qwen2 or Qwen3). pasta-smol's own comes from `pasta-async pull pasta-smol`:
#         pasta-async export ~/.cache/pasta_async/bases/b179c9523d0e6a0f/SmolLM2-135M-Instruct.Q4_1.gguf SmolLM2-135M-Instruct
#   NAME  name of the base on the Hugging Face hub, for the adapter that ships.
#   OUT   folder that everything is written to.
#
# The working directory has alpaca_eval.jsonl and ifeval.jsonl, which the prompts are kept apart from, and
# dolly.jsonl.gz, prompts that other people typed. Without Dolly's leave out the command that reads them, and its `--prompts`;
# without the others the options `--against`.
#
# The minutes are those of OURS=1120 DOLLY=480 FRESH=400 (a fifth of the data of stage 1) on two cores of an AMD EPYC (Zen 4).
set -eu

BASE=${BASE:-SmolLM2-135M-Instruct}
NAME=${NAME:-HuggingFaceTB/SmolLM2-135M-Instruct}
OUT=${OUT:-runs/pasta-smol}
PROMPTS=${PROMPTS:-$(dirname "$0")/../data/prompts.jsonl.gz}
OURS=${OURS:-5250}      # prompts of PROMPTS for stage 1; those behind them are for stage 2
DOLLY=${DOLLY:-2250}    # of Dolly's
FRESH=${FRESH:-375}     # for each round of stage 2
UPDATES=${UPDATES:-0}   # of each training; 0: as many as the data have

# Prompts.
corpus() {
    python -m pasta_async.training.data.corpus --prompts-only --against alpaca_eval.jsonl --against ifeval.jsonl "$@"
}
corpus --data "$PROMPTS" --limit "$OURS" --out "$OUT/ours.jsonl"
corpus --data dolly.jsonl.gz --limit "$DOLLY" --out "$OUT/dolly.jsonl"
corpus --data "$PROMPTS" --skip "$OURS" --out "$OUT/fresh.jsonl"

# 8 minutes: the base's own answers, so that its knowledge stays as it is. About half of them are kept. The base
# has no repetition penalty of its own, which is well: a model that imitates penalised answers finds its own text unlikely.
python -m pasta_async.training.answers --backend "local:$BASE" --prompts "$OUT/ours.jsonl" \
    --prompts "$OUT/dolly.jsonl" --temperature 0.5 --max-tokens 500 --out "$OUT/answers.jsonl"

# 10 minutes: annotation. The base measures which parts of an answer need each other. (What ships was cut
# by the base's own count of tokens; `--least` is a rough count now.)
python -m pasta_async.training.data.annotate --by likelihood --model "$BASE" \
    --data "$OUT/answers.jsonl" --cut blocks --least 12 --tau 0.5 --item-slack 2.5 --sync-tau 2.5 --out "$OUT/annotated"

# 24 minutes: stage 1. One adapter learns both forms, answers with tags and plain ones.
python -m pasta_async.training.sft --model "$BASE" --data "$OUT/annotated/annotated.jsonl" --form both \
    --estimates none --epochs 1 --steps "$UPDATES" --batch 8 --lora-rank 16 --lora-alpha 32 --lr 5e-4 \
    --tag-rate 20 --warmup 10 --out "$OUT/stage1"

# 21 minutes: the baseline, trained just as long on the same answers without tags.
python -m pasta_async.training.sft --model "$BASE" --data "$OUT/annotated/annotated.jsonl" --form plain \
    --epochs 2 --steps "$UPDATES" --batch 8 --lora-rank 16 --lora-alpha 32 --lr 5e-4 --warmup 10 --out "$OUT/baseline"

# Stage 2, two rounds. 24, 7 and 6 minutes each: ten samples of each prompt, their scores, training on the best.
before=$OUT/stage1
for round in 1 2; do
    now=$OUT/round$round
    # Half of the samples have no sync: most syncs between items of a list are worth nothing, and these win.
    python -m pasta_async.training.sample --backend "local:$before/model" --baseline "local:$OUT/baseline/model" \
        --prompts "$OUT/fresh.jsonl" --skip $(((round - 1) * FRESH)) --limit "$FRESH" \
        --n 10 --without-syncs 5 --max-tokens 500 --temperature 0.6 --plain-temperature 0.6 \
        --repetition-penalty 1 --out "$now/samples.jsonl"
    python -m pasta_async.training.score --samples "$now/samples.jsonl" --judge likelihood --judge-model "$BASE" \
        --sound-only --out "$now/scores.jsonl"
    # Half of the step (--start-share): the whole one makes answers brief, and leaves announced lists out.
    python -m pasta_async.training.prefer --model "$before/adapter" --samples "$now/samples.jsonl" \
        --scores "$now/scores.jsonl" --quality-weight 4 --sound-only --start-share 0.5 --epochs 3 \
        --steps "$UPDATES" --batch 8 --lr 3e-4 --warmup 3 --drop-long --out "$now/lambda4"
    before=$now/lambda4
done

# The folder that ships: float16, with the settings that users get.
python -m pasta_async.training.ship --adapter "$before/adapter" --base "$BASE" \
    --base-name "$NAME" --repetition-penalty 1.1 --suppress-estimates --out "$OUT/shipped"

echo "the adapter is in $OUT/shipped: measure local:$OUT/shipped (docs/training.md says how it finds its base); $before/model has no repetition penalty"
