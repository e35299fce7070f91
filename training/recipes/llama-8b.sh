#!/bin/sh
# A 7-8B model in the paper's setting (arXiv 2502.11517, sections 3 and 4) on a machine with 8 GPUs, but with
# adapters, since every GPU has the whole model. It was not run at its real size; a test checks its options.
# Every command goes on where it was interrupted: after Ctrl-C or a crash, run the whole script again.
#
# ANNOTATOR and JUDGE are endpoints of your own that speak OpenAI's chat completions; the judge's returns
# log-probabilities. While samples are drawn, this script serves the model and the baseline with SGLang.
# The working directory has alpaca_eval.jsonl (else leave out the options --against). SlimOrca comes from the hub. It takes curl,
# and on PATH a pasta-async beside which SGLang is installed.
set -eu

BASE=${BASE:-Llama-3.1-8B}      # a checkpoint folder; the paper's was Gemma 7B, pretrained alone
OUT=${OUT:-runs/llama-8b}
HERE=$(dirname "$0")
ANNOTATOR=${ANNOTATOR:-http://annotator:30000/v1}
JUDGE=${JUDGE:-http://judge:30000/v1}
LARGE=${LARGE:-Qwen/Qwen2.5-32B-Instruct}  # the model behind both: one that does not think first

# wait_for PROCESS PORT: wait until a server answers, or has ended (then the next command says that nothing answers).
wait_for() {
    until curl --silent --fail "http://127.0.0.1:$2/health" >/dev/null || ! kill -0 "$1" 2>/dev/null; do
        sleep 5
    done
}

# stop: end both servers, if there are any.
model=
baseline=
stop() {
    for server in $model $baseline; do kill "$server" 2>/dev/null || true; done
    wait
    model=
    baseline=
}
trap stop EXIT
trap 'exit 130' INT TERM

# About 87,000 annotated answers; the rows behind the first 90,000 are the prompts of stage 2.
python -m pasta_async.training.data.annotate --data Open-Orca/SlimOrca --limit 90000 --against alpaca_eval.jsonl \
    --base-url "$ANNOTATOR" --model "$LARGE" --together 128 --out "$OUT/annotated"
python -m pasta_async.training.data.corpus --prompts-only --data Open-Orca/SlimOrca --skip 90000 --limit 16000 \
    --against alpaca_eval.jsonl --out "$OUT/fresh.jsonl"

# Stage 1.
learn() {
    python -m torch.distributed.run --standalone --nproc-per-node 8 -m pasta_async.training.sft --model "$BASE" \
        --data "$OUT/annotated/annotated.jsonl" --chat-template "$HERE/llama3.jinja" --batch 8 --lora-rank 64 \
        --lora-alpha 128 --lr 2e-4 --epochs 4 --row-tokens 8192 --drop-long --recompute --dtype bfloat16 "$@"
}
learn --form pasta --out "$OUT/stage1"

# The baseline: the same answers without tags.
learn --form plain --out "$OUT/baseline"

# Stage 2, two rounds: ten samples of each prompt, their scores, training on the best. The paper's objective, BoNBoN,
# also compares the best with the worst (docs/training.md). Another weight of quality (--quality-weight 1, 2, 8 or
# inf, the paper's) needs no new samples in the first round.
before=$OUT/stage1
for round in 1 2; do
    now=$OUT/round$round
    # The model on four GPUs and the baseline on the other four, while samples are drawn.
    pasta-async sglang "$before/model" --port 31000 --dp-size 4 --dtype bfloat16 >"$OUT/model.log" 2>&1 &
    model=$!
    pasta-async sglang "$OUT/baseline/model" --port 31001 --base-gpu-id 4 --dp-size 4 --dtype bfloat16 \
        >"$OUT/baseline.log" 2>&1 &
    baseline=$!
    wait_for "$model" 31000
    wait_for "$baseline" 31001
    python -m pasta_async.training.sample --backend http://127.0.0.1:31000 --baseline http://127.0.0.1:31001 \
        --prompts "$OUT/fresh.jsonl" --skip $(((round - 1) * 8000)) --limit 8000 --n 10 --together 256 \
        --out "$now/samples.jsonl"
    stop
    python -m pasta_async.training.score --samples "$now/samples.jsonl" --judge "$JUDGE" \
        --judge-model "$LARGE" --together 128 --out "$now/scores.jsonl"
    python -m torch.distributed.run --standalone --nproc-per-node 8 -m pasta_async.training.prefer \
        --model "$before/adapter" --samples "$now/samples.jsonl" --scores "$now/scores.jsonl" \
        --quality-weight 4 --batch 8 --lr 5e-5 --epochs 1 --row-tokens 16384 --drop-long --recompute \
        --dtype bfloat16 --out "$now/lambda4"
    before=$now/lambda4
done

echo "the model is in $before/model, its baseline in $OUT/baseline/model: draw the answers of both with evals.speed, then compare them by evals.quality --original"
