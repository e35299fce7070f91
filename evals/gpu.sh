#!/bin/sh
# The tables of speed, methods, load and plans on one NVIDIA GPU, by one command:
#
#   sh evals/gpu.sh
#
# It takes Linux, Python 3.11 or later with venv and headers (python3-dev), a C++ compiler, a driver for CUDA 13 and, for
# SGLang, CUDA's toolkit of that version, a network, a GPU of 24 GiB that nobody else uses, and 80 GB of disk for OUT and the
# caches of the home folder. It makes environments with a stock SGLang and a stock vLLM, serves pasta-qwen and an instruct
# model that nobody trained, and writes OUT/results.md and OUT/results.json. What is done already is skipped: after
# Ctrl-C or an error run it again.
#
# It has not run on CUDA yet. A test runs it on a CPU, with SGLang and a tiny model (tests/sglang/test_gpu_kit.py).
#
# Paths are relative to the folder of the clone.
#
#   OUT       folder that everything is written to; one for each choice of what follows
#   LARGE     model that nobody trained: a folder, or a name on the Hugging Face hub
#   MEMORY    MiB of the GPU's memory that it takes
#   TRAINED   model that was trained: a name of ours, or the folder of a model
#   PROMPTS   prompts with answers, JSON lines of `instruction` and `output`; AlpacaEval's are fetched
#   SAMPLE    prompts of each timing; 200 for narrow intervals
#   ENGINES   of sglang and vllm
#   PYTHON    the Python that environments are made with
#   BIN       folder with the programs of an environment that is there already
#   SGLANG    the command that serves a model by SGLang ("pasta-async sglang")
#   DEVICE    cpu: no GPU is asked for its memory
#   DTYPE     number format of the trained model's weights
#   LOADS     options of evals.load
#   PORT      where the servers listen
set -eu
cd "$(dirname "$0")/.."

OUT=${OUT:-runs/gpu}
LARGE=${LARGE:-Qwen/Qwen2.5-7B-Instruct}    # as large as a GPU of 24 GiB holds, and free to fetch
MEMORY=${MEMORY:-20500}
TRAINED=${TRAINED:-pasta-qwen}
SAMPLE=${SAMPLE:-20}
ENGINES=${ENGINES:-sglang vllm}
DTYPE=${DTYPE:-bfloat16}
LOADS=${LOADS:---at-once 4 --at-once 16 --at-once 64 --rounds 1}
DEVICE=${DEVICE:-cuda}
PORT=${PORT:-31000}
URL=http://127.0.0.1:$PORT
SGLANG_VERSION=0.5.23    # that the tests ran with; the plug-in stays off with another one
VLLM_VERSION=0.32.0
SHARE=85    # percent of the GPU's memory that vLLM takes
START_SECONDS=1200    # of a server; the first one compiles kernels
server=

fail() {
    echo "gpu.sh: $1" >&2
    exit 1
}

# stop: end the server, if there is one; killed after a minute.
stop() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        (sleep 60; kill -9 "$server") >/dev/null 2>&1 &
        killer=$!
        wait "$server" || true
        kill "$killer" 2>/dev/null || true
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
        # Python's own pip may take minutes longer to resolve SGLang's requirements.
        "$folder/bin/python" -m pip install --quiet --upgrade --constraint constraints.txt pip
        "$folder/bin/python" -m pip install "$@"
        "$folder/bin/python" -m pip freeze >"$folder/.partial"
        mv "$folder/.partial" "$folder/.ready"
    fi
}

# listening: true if something listens on the port.
listening() {
    "$BIN/python" -c "import socket; socket.create_connection(('127.0.0.1', $PORT), 4)" 2>/dev/null
}

# healthy: true if the server is ready. Its address is this machine's, so no proxy is asked.
healthy() {
    "$BIN/python" -c "import urllib.request as r
r.build_opener(r.ProxyHandler({})).open('$URL/health', timeout=4)" 2>/dev/null
}

# serve NAME MODEL: start a server of the engine, and wait until it answers.
serve() {
    log=$OUT/$1.log
    ! listening || fail "something listens on port $PORT already: end it, or choose another PORT, and another OUT"
    echo "$(date +%H:%M:%S) starting $engine on $2"
    case $engine in
    # Forced answers need the flag.
    sglang) set -- "$2" --port "$PORT" --enable-custom-logit-processor
        if [ -n "${SGLANG:-}" ]; then
            $SGLANG "$@" >"$log" 2>&1 &
        else
            "$BIN/pasta-async" sglang "$@" --device "$DEVICE" >"$log" 2>&1 &
        fi ;;
    vllm) set -- "$2" --host 127.0.0.1 --port "$PORT" --enable-prompt-tokens-details
        [ "$DEVICE" = cpu ] || set -- "$@" --gpu-memory-utilization "0.$SHARE"
        PATH=$OUT/vllm/bin:$PATH "$OUT/vllm/bin/vllm" serve "$@" >"$log" 2>&1 & ;;
    esac
    server=$!
    began=$(date +%s)
    until healthy; do
        kill -0 "$server" 2>/dev/null || fail "the server ended; the end of $log: $(tail -n 20 "$log")"
        [ $(($(date +%s) - began)) -le $START_SECONDS ] || fail "the server does not answer; see $log"
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

# measure NAME PROGRAM OPTION...: have a program of evals measure the server and write its table, once.
measure() {
    name=$1
    program=$2
    shift 2
    if due "$name"; then
        echo "$(date +%H:%M:%S) measuring $name"
        "$BIN/python" -m "pasta_async.evals.$program" --backend "$backend" --sample "$SAMPLE" "$@" \
            --out "$OUT/$name.jsonl" >"$OUT/$name.partial"
        mv "$OUT/$name.partial" "$OUT/$name.md"
    fi
}

# timed NAME: time plain and parallel answers of a model.
timed() {
    measure "$1" speed --prompts "$PROMPTS" --temperature 0.6 --max-tokens 500
}

# Is everything there?
for engine in $ENGINES; do
    case $engine in sglang | vllm) ;; *) fail "ENGINES: there is no $engine" ;; esac
done
[ -n "${BIN:-}" ] || "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or later is needed: name one by PYTHON"
case $ENGINES in *sglang*) with_sglang=yes ;; *) with_sglang= ;; esac
case $ENGINES in *vllm*) with_vllm=yes ;; *) with_vllm= ;; esac
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
if [ "$DEVICE" = cuda ]; then
    # Both servers compile at their start: Triton needs Python's headers, and SGLang a C++ compiler and nvcc, which it
    # looks for in this order (sglang/kernels/jit/utils/compile/toolchain.py).
    if [ -z "${BIN:-}" ]; then
        headers=$("${PYTHON:-python3}" -c 'import sysconfig; print(sysconfig.get_path("include"))')
        [ -e "$headers/Python.h" ] || fail "$headers has no Python.h: install Python's headers (python3-dev)"
    fi
    command -v "${CXX:-c++}" >/dev/null || fail "there is no C++ compiler: install one (g++), or name it by CXX"
    if [ -n "$with_sglang" ]; then
        if [ -n "${CUDA_HOME:-${CUDA_PATH:-}}" ]; then
            nvcc=${CUDA_HOME:-$CUDA_PATH}/bin/nvcc
        else
            nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
        fi
        [ -x "$nvcc" ] || fail "there is no $nvcc: SGLang needs the toolkit of CUDA 13, on PATH or at CUDA_HOME"
    fi
    gpu=${CUDA_VISIBLE_DEVICES:-0}
    told=$(nvidia-smi --id="${gpu%%,*}" --query-gpu=memory.free,memory.total --format=csv,noheader,nounits) ||
        fail "nvidia-smi says nothing: this needs an NVIDIA GPU and its driver"
    free=${told%%,*}
    total=${told##*, }
    [ "$free" -ge "$MEMORY" ] ||
        fail "$free MiB of GPU memory are free; $MEMORY are needed, or a smaller model (LARGE, and its MEMORY)"
    [ -z "$with_vllm" ] || [ $((free * 100)) -ge $((total * SHARE)) ] ||
        fail "$free of $total MiB of GPU memory are free; vLLM needs $SHARE% of all: end what else uses the GPU"
    disk=$(df -Pk "$OUT" | awk 'NR == 2 { print int($4 / 1000000) }')
    [ "$disk" -ge 80 ] || [ -e "$OUT/env/.ready" ] || fail "$disk GB of disk are free at $OUT; 80 are needed"
fi

# The settings are a table of the page, and tables of others do not mix with it.
cat >"$OUT/settings.partial" <<SETTINGS
| setting | value |
| --- | --- |
| trained model | $TRAINED, $DTYPE |
| model that nobody trained | $LARGE |
| prompts | $SAMPLE of ${PROMPTS:-AlpacaEval} |
| load | $LOADS |
| versions | SGLang $SGLANG_VERSION, vLLM $VLLM_VERSION |
SETTINGS
if [ -e "$OUT/settings.md" ] && ! cmp -s "$OUT/settings.partial" "$OUT/settings.md"; then
    fail "$OUT has tables of other settings ($OUT/settings.md): choose another OUT"
fi
mv "$OUT/settings.partial" "$OUT/settings.md"

# Programs.
if [ -z "${BIN:-}" ]; then
    environment "$OUT/env" ${with_sglang:+"sglang==$SGLANG_VERSION"} --editable '.[local,cli,evals]'
    BIN=$OUT/env/bin
    PATH=$BIN:$PATH    # SGLang calls ninja, which is installed there
    export PATH
fi
if [ -n "$with_vllm" ]; then environment "$OUT/vllm" "vllm==$VLLM_VERSION"; fi
if [ "$DEVICE" = cuda ] && [ -n "$with_sglang" ]; then
    "$BIN/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
        fail "torch sees no GPU: its driver must know CUDA 13"
fi

# Models and prompts.
if [ ! -d "$OUT/trained" ]; then
    if [ ! -d "$TRAINED" ]; then "$BIN/pasta-async" pull "$TRAINED"; fi
    "$BIN/pasta-async" export "$TRAINED" "$OUT/trained" --dtype "$DTYPE"
fi
if [ -z "${PROMPTS:-}" ]; then
    PROMPTS=$OUT/prompts.jsonl
    if [ ! -s "$PROMPTS" ]; then
        "$BIN/python" - "$PROMPTS.partial" <<'PYTHON'
import json, sys
from huggingface_hub import hf_hub_download

rows = json.load(open(hf_hub_download("tatsu-lab/alpaca_eval", "alpaca_eval.json", repo_type="dataset")))
open(sys.argv[1], "w").writelines(json.dumps({key: row[key] for key in ("instruction", "output")}) + "\n" for row in rows)
PYTHON
        mv "$PROMPTS.partial" "$PROMPTS"
    fi
fi
DOCUMENTS=$OUT/documents/annotated.jsonl
if [ ! -s "$DOCUMENTS" ]; then
    "$BIN/python" -m pasta_async.training.data.annotate --by structure --data "$PROMPTS" \
        --out "$OUT/documents"
fi

for engine in $ENGINES; do
    case $engine in sglang) backend=$URL ;; vllm) backend=vllm:$URL ;; esac

    # The trained model: plain and in parallel, and on SGLang other methods, and load.
    if due "$engine-trained-speed" ||
        { [ "$engine" = sglang ] && due sglang-methods sglang-load; }; then
        serve "$engine-trained" "$OUT/trained"
        timed "$engine-trained-speed"
        if [ "$engine" = sglang ]; then
            measure sglang-methods methods --documents "$DOCUMENTS" --passes 1
            measure sglang-load load --documents "$DOCUMENTS" $LOADS
        fi
        stop
    fi
    # Without the plug-in forks find less in the cache, and wait longer.
    if [ "$engine" = sglang ] && due sglang-speed-without-plug-in; then
        PASTA_SGLANG_PLUGIN=0
        export PASTA_SGLANG_PLUGIN
        serve sglang-stock "$OUT/trained"
        unset PASTA_SGLANG_PLUGIN
        timed sglang-speed-without-plug-in
        stop
    fi

    # The model that nobody trained: plain and with outlines, and plans.
    if due "$engine-large-speed" "$engine-large-invoices" "$engine-large-profiles"; then
        # As a folder: by a name on the hub SGLang does not read the model's default sampling, and vLLM does.
        large=$LARGE
        if [ ! -d "$large" ]; then
            large=$("$BIN/python" -c 'import huggingface_hub, sys; print(huggingface_hub.snapshot_download(sys.argv[1]))' "$LARGE")
        fi
        serve "$engine-large" "$large"
        timed "$engine-large-speed"
        for form in invoices profiles; do
            measure "$engine-large-$form" plans --subset "$form"
        done
        stop
    fi
done

"$BIN/python" -m pasta_async.evals.report "$OUT"
