#!/bin/sh
# A 7-8B model in the paper's setting (arXiv 2502.11517, sections 3 and 4) on a machine with 8 GPUs, but with
# adapters, since every GPU has the whole model. It was not run at its real size; a test checks its options.
# Every command goes on where it was interrupted.
#
# ANNOTATOR and JUDGE are endpoints of your own that speak OpenAI's chat completions; the judge's returns
# log-probabilities. While samples are drawn, this script serves the model and the baseline with SGLang.
set -eu

BASE=${BASE:-Llama-3.1-8B}      # a checkpoint folder; the paper's was Gemma 7B, pretrained alone
OUT=${OUT:-runs/llama-8b}
HERE=$(dirname "$0")
ANNOTATOR=${ANNOTATOR:-http://annotator:30000/v1}
JUDGE=${JUDGE:-http://judge:30000/v1}
LARGE=${LARGE:-Qwen/Qwen3-32B}  # the model behind both

# About 87,000 annotated answers; the rows behind the first 90,000 are the prompts of stage 2.
python -m pasta_async.training.data.annotate --data Open-Orca/SlimOrca --limit 90000 --against alpaca_eval.jsonl \
    --base-url "$ANNOTATOR" --model "$LARGE" --in-flight 128 --tokenizer "$BASE" --out "$OUT/annotated"
python -m pasta_async.training.data.corpus --prompts-only --data Open-Orca/SlimOrca --skip 90000 --limit 32000 \
    --against alpaca_eval.jsonl --out "$OUT/fresh.jsonl"

# Stage 1, and the baseline: the same answers without tags.
for form in pasta plain; do
    python -m torch.distributed.run --standalone --nproc-per-node 8 -m pasta_async.training.sft --model "$BASE" \
        --data "$OUT/annotated/annotated.jsonl" --form "$form" --chat-template "$HERE/llama3.jinja" --batch 8 \
        --lora-rank 64 --lora-alpha 128 --lr 2e-4 --epochs 4 --row-tokens 8192 --drop-long --recompute --dtype bfloat16 --out "$OUT/stage1-$form"
done

# Stage 2: two rounds for each weight of quality; the first round's samples are the same for all of them.
# It imitates the best; the paper's objective, BoNBoN, also compares it with the worst (docs/training.md).
for weight in 1 2 4 8 inf; do
    before=$OUT/stage1-pasta
    for round in 1 2; do
        now=$OUT/round$round-lambda$weight
        samples=$now
        if [ "$round" = 1 ]; then samples=$OUT/round1; fi
        # Start two servers here, and stop them behind the samples:
        #   pasta-async sglang $before/model --port 31000 --dp-size 4 --dtype bfloat16
        #   pasta-async sglang $OUT/stage1-plain/model --port 31001 --base-gpu-id 4 --dp-size 4 --dtype bfloat16
        python -m pasta_async.training.sample --backend http://127.0.0.1:31000 --baseline http://127.0.0.1:31001 \
            --prompts "$OUT/fresh.jsonl" --skip $(((round - 1) * 8000)) --limit 8000 --n 10 --together 256 \
            --out "$samples/samples.jsonl"
        python -m pasta_async.training.score --samples "$samples/samples.jsonl" --judge "$JUDGE" \
            --judge-model "$LARGE" --in-flight 128 --out "$samples/scores.jsonl"
        python -m torch.distributed.run --standalone --nproc-per-node 8 -m pasta_async.training.prefer \
            --model "$before/adapter" --samples "$samples/samples.jsonl" --scores "$samples/scores.jsonl" \
            --quality-weight "$weight" --batch 8 --lr 5e-5 --epochs 1 --row-tokens 16384 --drop-long --recompute \
            --dtype bfloat16 --out "$now"
        before=$now
    done
done
