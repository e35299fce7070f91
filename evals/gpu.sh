#!/bin/sh
# The tables of speed, methods, load and plans on one NVIDIA GPU, by one command:
#
#   sh evals/gpu.sh
#
# It takes Linux, Python 3.11 or 3.12 with venv and headers (python3-dev), a C++ compiler, libnuma, a driver for CUDA 13 (580
# or later), the toolkit of CUDA 13, a network, a GPU of 24 GB that nobody else uses, and 80 GB of disk for OUT, in which
# caches are, too. It makes environments with a stock SGLang and a stock vLLM, serves pasta-qwen and an instruct model that
# nobody trained, and writes OUT/results.md and OUT/results.json. What is done already is skipped: after Ctrl-C or an error
# run it again. If one engine fails, ENGINES names the other one.
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
#   PYTHON    the Python that environments are made with; python3.12, python3.11 or python3
#   BIN       folder with the programs of an environment that is there already
#   SGLANG    the command that serves a model by SGLang ("pasta-async sglang")
#   DEVICE    cpu: no GPU is asked for its memory
#   DTYPE     number format of the trained model's weights
#   LOADS     options of evals.load
#   PORT      where the servers listen
set -eu
unset CDPATH    # else cd prints
cd "$(dirname "$0")/.."

OUT=${OUT:-runs/gpu}
LARGE=${LARGE:-Qwen/Qwen2.5-7B-Instruct}    # as large as a GPU of 24 GiB holds, and free to fetch
MEMORY=${MEMORY:-22000}
TRAINED=${TRAINED:-pasta-qwen}
SAMPLE=${SAMPLE:-20}
ENGINES=${ENGINES:-sglang vllm}
DTYPE=${DTYPE:-bfloat16}
LOADS=${LOADS:---at-once 4 --at-once 16 --at-once 64 --rounds 1}
DEVICE=${DEVICE:-cuda}
PORT=${PORT:-31000}
PYTHON=${PYTHON:-$(command -v python3.12 || command -v python3.11 || echo python3)}
URL=http://127.0.0.1:$PORT
SGLANG_VERSION=0.5.23    # that the tests ran with; the plug-in stays off with another one
VLLM_VERSION=0.32.0
SHARE=85    # percent of the GPU's memory that a server takes; by its own choice SGLang leaves no KV cache on 24 GB
CONTEXT=8192    # tokens, of vLLM, which wants room for one whole context
tied="setpriv --pdeathsig TERM"    # what runs by it ends with this script, however that ends
START_SECONDS=1200    # of a server; the first one compiles kernels
server=

fail() {
    printf 'gpu.sh: %s\n' "$1" >&2
    exit 1
}

# stop: end the server, if there is one; killed after a minute.
stop() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        (sleep 60; kill -9 "$server") >/dev/null 2>&1 9>&- &
        killer=$!
        wait "$server" || true
        kill "$killer" 2>/dev/null || true
        server=
    fi
}

# finish: at the end, however it comes, end the server, and write what is measured so far.
finish() {
    status=$?
    stop
    if [ -n "${BIN:-}" ] && ls "$OUT"/*.md >/dev/null 2>&1; then
        "$BIN/python" -m pasta_async.evals.report "$OUT" || [ "$status" -ne 0 ] || status=1
    fi
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

# environment FOLDER REQUIREMENT...: make a virtual environment, unless it has these requirements; torch has to see the GPU.
environment() {
    folder=$1
    shift
    case $(cat "$folder/.ready" 2>/dev/null) in
    *"$*") ;;
    *) "$PYTHON" -m venv --clear "$folder"
        # Python's own pip may take minutes longer to resolve SGLang's requirements.
        "$folder/bin/python" -m pip install --quiet --upgrade --constraint constraints.txt pip
        TMPDIR=$folder $tied "$folder/bin/python" -m pip install "$@"
        "$folder/bin/python" -m pip freeze >"$folder/packages.txt"
        echo "$*" >"$folder/.ready" ;;
    esac
    [ "$DEVICE" = cpu ] || "$folder/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
        fail "torch of $folder sees no GPU"
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
        # Parallel answers are more requests than plain ones: all are to decode by CUDA graphs.
        [ "$DEVICE" = cpu ] || set -- "$@" --mem-fraction-static "0.$SHARE" --chunked-prefill-size 2048 \
            --cuda-graph-max-bs-decode 256
        if [ -n "${SGLANG:-}" ]; then
            $tied $SGLANG "$@" >"$log" 2>&1 &
        else
            $tied "$BIN/pasta-async" sglang "$@" --device "$DEVICE" >"$log" 2>&1 &
        fi ;;
    vllm) set -- "$2" --host 127.0.0.1 --port "$PORT" --enable-prompt-tokens-details
        [ "$DEVICE" = cpu ] || set -- "$@" --gpu-memory-utilization "0.$SHARE" --max-model-len "$CONTEXT"
        PATH=$OUT/vllm/bin:$PATH $tied "$OUT/vllm/bin/vllm" serve "$@" >"$log" 2>&1 & ;;
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
        $tied "$BIN/python" -m "pasta_async.evals.$program" --backend "$backend" --sample "$SAMPLE" "$@" \
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
# A requirement of SGLang (outlines_core) has no wheels for later ones.
[ -n "${BIN:-}" ] || "$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' ||
    fail "Python 3.11 or 3.12 is needed: name one by PYTHON"
case $ENGINES in *sglang*) with_sglang=yes ;; *) with_sglang= ;; esac
case $SAMPLE in '' | 0* | *[!0-9]*) fail "SAMPLE: $SAMPLE is no number of prompts" ;; esac
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
exec 9>"$OUT/lock"    # what this script starts has it, too
flock --nonblock 9 || fail "another run works in $OUT, or what it left behind: wait until that ends"
# Downloads lie there, too, so that one folder needs the room.
export HF_HUB_CACHE="${HF_HUB_CACHE:-$OUT/cache/hub}" HF_XET_CACHE="${HF_XET_CACHE:-$OUT/cache/xet}"
export PIP_CACHE_DIR="${PIP_CACHE_DIR:-$OUT/cache/pip}" PASTA_ASYNC_CACHE="${PASTA_ASYNC_CACHE:-$OUT/cache/pasta_async}"
export CUDA_DEVICE_ORDER=PCI_BUS_ID    # as nvidia-smi numbers them
if [ "$DEVICE" = cuda ]; then
    # Both servers compile at their start: Triton needs Python's headers, FlashInfer's kernels a C++ compiler and nvcc, which
    # SGLang looks for in this order (sglang/kernels/jit/utils/compile/toolchain.py).
    if [ -z "${BIN:-}" ]; then
        headers=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')
        [ -e "$headers/Python.h" ] || fail "$headers has no Python.h: install Python's headers (python3-dev)"
    fi
    command -v "${CXX:-c++}" >/dev/null || fail "there is no C++ compiler: install one (g++), or name it by CXX"
    if [ -n "${CUDA_HOME:-${CUDA_PATH:-}}" ]; then
        nvcc=${CUDA_HOME:-$CUDA_PATH}/bin/nvcc
    else
        nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    fi
    toolkit=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    [ "${toolkit:-0}" -ge 13 ] ||
        fail "$nvcc is not there, or older than 13: the toolkit of CUDA 13 is needed, on PATH or at CUDA_HOME"
    [ -z "$with_sglang" ] || "$PYTHON" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
        fail "there is no libnuma.so.1, which SGLang's kernels need: install libnuma1"
    gpu=${CUDA_VISIBLE_DEVICES:-0}
    told=$(nvidia-smi --id="${gpu%%,*}" --query-gpu=memory.free,memory.total,driver_version --format=csv,noheader,nounits) ||
        fail "nvidia-smi says nothing: this needs an NVIDIA GPU and its driver"
    free=${told%%,*}
    driver=${told##*, }
    told=${told%,*}
    total=${told##*, }
    [ "${driver%%.*}" -ge 580 ] || fail "the driver is $driver: CUDA 13 needs 580 or later"
    [ "$free" -ge "$MEMORY" ] ||
        fail "$free MiB of GPU memory are free; $MEMORY are needed, or a smaller model (LARGE, and its MEMORY)"
    [ $((free * 100)) -ge $((total * SHARE)) ] ||
        fail "$free of $total MiB of GPU memory are free; servers take $SHARE% of all: end what else uses the GPU"
    room=$(df -Pk "$OUT" | awk 'NR == 2 { print int($4 / 1000000) }')
    used=$(du -sk "$OUT" | awk '{ print int($1 / 1000000) }')
    [ $((room + used)) -ge 80 ] || fail "$room GB of disk are free at $OUT; $((80 - used)) are needed"
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
    fail "$OUT was begun with other settings ($OUT/settings.md): choose another OUT"
fi
mv "$OUT/settings.partial" "$OUT/settings.md"

# Programs.
if [ -z "${BIN:-}" ]; then
    environment "$OUT/env" ${with_sglang:+"sglang==$SGLANG_VERSION"} --editable '.[local,cli,evals]'
    BIN=$OUT/env/bin
fi
BIN=$(cd "$BIN" && pwd)
export PATH="$BIN:$PATH"    # SGLang calls ninja, which is installed there

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

rows = json.load(open(hf_hub_download("tatsu-lab/alpaca_eval", "alpaca_eval_gpt4_baseline.json", repo_type="dataset")))
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
    case $engine in
    sglang) backend=$URL ;;
    vllm) backend=vllm:$URL
        environment "$OUT/vllm" "vllm==$VLLM_VERSION" ;;
    esac

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
        measure "$engine-large-invoices" plans --subset invoices
        measure "$engine-large-profiles" plans --subset profiles --sample $(((SAMPLE + 1) / 2))    # they are long
        stop
    fi
done
