# Two commands do all the set-up: `make pilot` and `make test`. Everything lives in .venv; nothing else is touched.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?= pytest
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

TIERS  := torch or verifiers or vllm or tinker or fleet or ray or browser or gpu or slow

.DEFAULT_GOAL := help
.PHONY: help pilot test test-all test-slow test-tinker test-vllm test-verifiers test-fleet test-ray test-browser test-gpu coverage fuzz lint docs site bench speed chaos clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) install -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.installed
	$(PIP) install --upgrade 'pip>=25.1'
	$(PIP) install --group dev
	@touch $@

pilot: $(VENV)/.installed  ## run the local nested pilot; FRESH=1 starts over
	$(BIN)/nested-rl pilot $(if $(FRESH),--fresh)

test: $(VENV)/.dev  ## fast tests, offline, under 5 minutes
	$(BIN)/python -m $(RUN) -q -n 2 -m "not ($(TIERS))"

test-all: test test-slow test-tinker test-vllm test-verifiers test-fleet test-ray test-browser  ## the real components too, each tier in a venv of its own

test-slow: $(VENV)/.dev  ## whole pilots, killed and resumed; every page's code
	$(BIN)/python -m pytest -q -m "slow and not ($(subst  or slow,,$(TIERS)))"

# A tier's packages are in tests/tiers/NAME.txt; its venv is made anew only when these change.
.venvs/%/.installed: tests/tiers/%.txt pyproject.toml
	$(PYTHON) -m venv .venvs/$*
	.venvs/$*/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	.venvs/$*/bin/python -m pip install --quiet -r $<
	.venvs/$*/bin/python -m pip install --quiet -e . --group test
# vLLM drags in a torchvision that is built for GPUs and fails beside a torch for CPUs; text models do not need it
	$(if $(filter vllm,$*),.venvs/$*/bin/python -m pip uninstall --quiet -y torchvision torchaudio torchcodec)
	@touch $@
.PRECIOUS: .venvs/%/.installed

# The server of that tier has an environment of its own. skyrl declares GPU stacks and a later Python than it needs here.
.venvs/tinker-server/.installed: tests/tiers/tinker-server.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(@D)/bin/python -m pip install --quiet -r $<
	$(@D)/bin/python -m pip install --quiet --no-deps --ignore-requires-python skyrl==0.4.0
	@touch $@

test-tinker: .venvs/tinker/.installed .venvs/tinker-server/.installed  ## the real tinker client and server; the numpy engine against torch and PEFT
	.venvs/tinker/bin/python -m pytest -q -m torch
	.venvs/tinker/bin/python -m pytest -q -m tinker

test-vllm: .venvs/vllm/.installed  ## a real vLLM on the CPU
	.venvs/vllm/bin/python -m pytest -q -m vllm

test-verifiers: .venvs/verifiers/.installed .venvs/verifiers-0.4/.installed  ## the real verifiers package, in two versions
	.venvs/verifiers/bin/python -m pytest -q -m verifiers tests/verifiers tests/unit/test_prime_rl*.py
	.venvs/verifiers-0.4/bin/python -m pytest -q -m verifiers tests/verifiers

# They wait for other processes most of their time: four at once on two cores.
test-fleet: .venvs/fleet/.installed  ## real sshd processes behind a fake provider
	.venvs/fleet/bin/python -m $(RUN) -q -n 4 --dist loadfile -m fleet tests/fleet

test-ray: .venvs/ray/.installed  ## a real Ray cluster of several nodes, some of which are killed
	.venvs/ray/bin/python -m $(RUN) -q -m ray tests/ray

test-browser: .venvs/browser/.installed  ## the pages in headless Chromium; data and metrics in the packages they go out to
	.venvs/browser/bin/python -m pytest -q -m browser tests/browser

test-gpu: $(VENV)/.dev  ## one full-scale job on this computer's GPU, with prime-rl and a base's weights
	$(BIN)/python -m pytest -q -m gpu

# What runs in a sandbox gives up its rights: the folder is for everybody to write into.
coverage: $(VENV)/.dev  ## `test` and `test-fleet`: whether they take 90 % of the lines and branches of meter, rundir, queues, jobs, compute
	rm -rf .coverage.d && mkdir -m 777 .coverage.d
	$(MAKE) test test-fleet RUN='coverage run -m pytest'
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python tests/covered.py

fuzz: $(VENV)/.dev  ## the parsers of what agents and servers write, with many more examples (half an hour)
	$(BIN)/python -m pytest -q -n 2 --timeout=3600 --hypothesis-profile=long tests/fuzz

lint: $(VENV)/.dev  ## ruff, mypy --strict, the import contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.dev site  ## build the documentation site, strictly, and run every code block of README and docs
	$(BIN)/python -m pytest -q tests/e2e/test_docs.py

site: .venvs/docs/.installed  ## the documentation site, in site/
	NO_MKDOCS_2_WARNING=1 .venvs/docs/bin/python -m mkdocs build --strict

bench: $(VENV)/.dev  ## measure again what README and docs say (an hour), write it there, and tell what moved by more than 10 %
	for name in base_table pilot_seeds; do $(BIN)/python benchmarks/$$name.py || exit 1; done
	$(BIN)/nested-rl pilot --quiet
	$(BIN)/python benchmarks/triage_transfer.py
	$(MAKE) speed
	$(BIN)/python benchmarks/readme_tables.py

# Packages that this one is compared with.
.venvs/bench/.installed: benchmarks/requirements.txt pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(@D)/bin/python -m pip install --quiet -r $<
	$(@D)/bin/python -m pip install --quiet -e .
	@touch $@

speed: $(VENV)/.dev .venvs/bench/.installed .venvs/verifiers/.installed .venvs/vllm/.installed  ## of `bench` only what docs/performance.md says (twenty minutes)
	rm -rf .bench && mkdir .bench && cp benchmarks/results/*.json .bench
	for name in engine job queue_rates transfer; do .venvs/bench/bin/python benchmarks/$$name.py || exit 1; done
	.venvs/verifiers/bin/python benchmarks/probe.py
	.venvs/vllm/bin/python benchmarks/scoring.py
	for name in outer schedule; do $(BIN)/python benchmarks/$$name.py || exit 1; done
	$(BIN)/python benchmarks/performance.py
	$(BIN)/python benchmarks/moved.py .bench

chaos: $(VENV)/.dev  ## 200 pilots under random kill -9; half an hour (test-slow runs 20)
	$(BIN)/python tests/chaos/chaos.py --runs 200 --out benchmarks/results/chaos.json

clean:  ## remove environments and caches (never runs/)
	rm -rf .bench .venv .venvs dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
