#!/bin/sh
# The tables of docs/results.md on one NVIDIA GPU, by one command:
#
#   sh evals/gpu.sh
#
# It takes Linux, Python 3.11 or later with venv, a network, 22 GiB of GPU memory and 80 GB of disk. It makes
# environments with a stock SGLang and a stock vLLM, serves pasta-qwen and an instruct model that nobody trained,
# and writes OUT/results.md and OUT/results.json. What is done already is skipped: after Ctrl-C or an error run it again.
#
# It has not run on CUDA yet. A test runs it on a CPU, with SGLang and a tiny model (tests/sglang/test_gpu_kit.py).
#
#   OUT       folder that everything is written to
#   LARGE     model that nobody trained: a folder, or a name on the Hugging Face hub
#   TRAINED   model that was trained: a name of ours, or the folder of a model
#   PROMPTS   prompts with answers, JSON lines of `instruction` and `output`; AlpacaEval's are fetched
#   SAMPLE    prompts of each timing
#   ENGINES   of sglang and vllm
#   PYTHON    the Python that environments are made with
#   BIN       folder with the programs of an environment that is there already
#   SGLANG    the command that serves a model by SGLang
#   VLLM      the command that serves a model by vLLM
#   DEVICE    cpu: no GPU is asked for its memory
#   DTYPE     number format of the trained model's weights
#   LOADS     options of evals.load
#   PORT      where the servers listen
set -eu
cd "$(dirname "$0")/.."

OUT=${OUT:-runs/gpu}
LARGE=${LARGE:-Qwen/Qwen2.5-7B-Instruct}    # as large as a GPU of 24 GiB holds, and free to fetch
TRAINED=${TRAINED:-pasta-qwen}
SAMPLE=${SAMPLE:-40}
ENGINES=${ENGINES:-sglang vllm}
DTYPE=${DTYPE:-bfloat16}
PORT=${PORT:-31000}
URL=http://127.0.0.1:$PORT
SGLANG_VERSION=0.5.23    # that the tests ran with; the plug-in stays off with another one
VLLM_VERSION=0.32.0
server=

fail() {
    echo "gpu.sh: $1" >&2
    exit 1
}

# stop: end the server, if there is one.
stop() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" || true
        server=
    fi
}
trap stop EXIT
trap 'exit 130' INT TERM

# environment FOLDER REQUIREMENT...: make a virtual environment, once.
environment() {
    folder=$1
    shift
    if [ ! -e "$folder/.ready" ]; then
        "${PYTHON:-python3}" -m venv "$folder"
        "$folder/bin/python" -m pip install --disable-pip-version-check "$@"
        "$folder/bin/python" -m pip freeze >"$folder/.ready"
    fi
}

# serve NAME COMMAND...: start a server, and wait until it answers.
serve() {
    log=$OUT/$1.log
    shift
    echo "starting: $*"
    "$@" >"$log" 2>&1 &
    server=$!
    until "$BIN/python" -c "import urllib.request as r; r.urlopen('$URL/health', timeout=4)" 2>/dev/null; do
        kill -0 "$server" 2>/dev/null || fail "the server ended; the end of $log: $(tail -n 20 "$log")"
        sleep 2
    done
}

# due NAME...: true if the table of one of these is missing.
due() {
    for name; do
        if [ ! -s "$OUT/$name.md" ]; then return 0; fi
    done
    return 1
}

# measure NAME PROGRAM OPTION...: have a program of evals write its table, once.
measure() {
    table=$OUT/$1.md
    program=$2
    shift 2
    if [ ! -s "$table" ]; then
        echo "measuring: $table"
        "$BIN/python" -m "pasta_async.evals.$program" "$@" >"$table.partial"
        mv "$table.partial" "$table"
    fi
}

# Is there room?
mkdir -p "$OUT"
if [ "${DEVICE:-cuda}" = cuda ]; then
    told=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits) ||
        fail "nvidia-smi says nothing: this needs an NVIDIA GPU and its driver"
    free=$(echo "$told" | head -n 1)
    [ "$free" -ge 22000 ] || fail "$free MiB of GPU memory are free; 22,000 are needed, or a smaller model (LARGE)"
    disk=$(df -Pk "$OUT" | awk 'NR == 2 { print int($4 / 1000000) }')
    [ "$disk" -ge 80 ] || [ -d "$OUT/trained" ] || fail "$disk GB of disk are free at $OUT; 80 are needed"
fi

# Programs.
if [ -z "${BIN:-}" ]; then
    environment "$OUT/env" "sglang==$SGLANG_VERSION" --editable '.[local,cli,evals]'
    BIN=$OUT/env/bin
fi
SGLANG=${SGLANG:-$BIN/pasta-async sglang}
case $ENGINES in *vllm*)
    if [ -z "${VLLM:-}" ]; then
        environment "$OUT/vllm" "vllm==$VLLM_VERSION"
        VLLM="$OUT/vllm/bin/vllm serve"
    fi ;;
esac

# Models and prompts.
if [ ! -d "$OUT/trained" ]; then
    if [ ! -d "$TRAINED" ]; then "$BIN/pasta-async" pull "$TRAINED"; fi
    "$BIN/pasta-async" export "$TRAINED" "$OUT/trained.partial" --dtype "$DTYPE"
    mv "$OUT/trained.partial" "$OUT/trained"
fi
if [ -z "${PROMPTS:-}" ]; then
    PROMPTS=$OUT/prompts.jsonl
    [ -s "$PROMPTS" ] || "$BIN/python" - "$PROMPTS" <<'PYTHON'
import json, sys
from huggingface_hub import hf_hub_download

rows = json.load(open(hf_hub_download("tatsu-lab/alpaca_eval", "alpaca_eval.json", repo_type="dataset")))
open(sys.argv[1], "w").writelines(json.dumps({key: row[key] for key in ("instruction", "output")}) + "\n" for row in rows)
PYTHON
fi
DOCUMENTS=$OUT/documents
if [ ! -d "$DOCUMENTS" ]; then
    "$BIN/python" -m pasta_async.training.data.annotate --heuristic --data "$PROMPTS" --tokenizer "$OUT/trained" \
        --out "$DOCUMENTS"
fi
DOCUMENTS=$DOCUMENTS/annotated.jsonl

TIMED="--prompts $PROMPTS --sample $SAMPLE --max-tokens 500"
LOADED="--documents $DOCUMENTS --sample $SAMPLE"
for engine in $ENGINES; do
    case $engine in
    sglang)
        run=$SGLANG
        backend=$URL
        # Forced answers need the first flag; the second tells what the cache had.
        flags="--enable-custom-logit-processor --enable-cache-report"
        ;;
    vllm)
        run=$VLLM
        backend=vllm:$URL
        flags=--enable-prompt-tokens-details
        ;;
    *) fail "ENGINES: there is no $engine" ;;
    esac

    # The trained model: plain and in parallel, and on SGLang other methods, and load.
    if due "$engine-trained-speed" ||
        { [ "$engine" = sglang ] && due sglang-methods sglang-load; }; then
        serve "$engine-trained" $run "$OUT/trained" --port "$PORT" $flags
        measure "$engine-trained-speed" speed --backend "$backend" $TIMED --out "$OUT/$engine-trained-speed.jsonl"
        if [ "$engine" = sglang ]; then
            measure sglang-methods methods --backend "$backend" $LOADED --passes 1 --out "$OUT/sglang-methods.jsonl"
            measure sglang-load load --backend "$backend" $LOADED --out "$OUT/sglang-load.jsonl" ${LOADS:-}
        fi
        stop
    fi
    # Without the plug-in forks find less in the cache, and wait longer.
    if [ "$engine" = sglang ] && due sglang-speed-without-plug-in; then
        PASTA_SGLANG_PLUGIN=0
        export PASTA_SGLANG_PLUGIN
        serve sglang-stock $run "$OUT/trained" --port "$PORT" $flags
        unset PASTA_SGLANG_PLUGIN
        measure sglang-speed-without-plug-in speed --backend "$backend" $TIMED \
            --out "$OUT/sglang-speed-without-plug-in.jsonl"
        stop
    fi

    # The model that nobody trained: plain and with outlines, and plans.
    if due "$engine-large-speed" "$engine-large-invoices" "$engine-large-profiles"; then
        # As a folder: by a name on the hub SGLang does not read the model's default sampling, and vLLM does.
        if [ ! -d "$LARGE" ]; then
            LARGE=$("$BIN/python" -c 'import huggingface_hub, sys; print(huggingface_hub.snapshot_download(sys.argv[1]))' "$LARGE")
        fi
        serve "$engine-large" $run "$LARGE" --port "$PORT" $flags
        measure "$engine-large-speed" speed --backend "$backend" $TIMED --out "$OUT/$engine-large-speed.jsonl"
        for form in invoices profiles; do
            measure "$engine-large-$form" plans --backend "$backend" --subset "$form" --sample "$SAMPLE" \
                --out "$OUT/$engine-large-$form.jsonl"
        done
        stop
    fi
done

"$BIN/python" -m pasta_async.evals.report "$OUT"
