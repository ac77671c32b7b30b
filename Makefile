# From a bare clone: Python 3.11+ with its venv module, Node 20.19+, npm and make; nothing else.
# Every path is relative and the environment's programs are run as modules, so a space in the folder's path is no harm.

SHELL := /bin/sh
PYTHON ?= python3
PY := .venv/bin/python
UV := $(PY) -m uv --quiet
STAMPS := .venv/.stamps
SAY := @printf '\033[1m==> %s\033[0m\n'
# What the front end is built from.
SOURCES := package.json package-lock.json tsconfig.base.json $(wildcard widgets/*.json extension/*.json extension/*.cjs) \
  $(shell find widgets/src widgets/style extension/src extension/style extension/schema -type f 2>/dev/null | grep -v ' ')

.PHONY: help setup demo test test-long bench soak gpu gpu-kit check dev docs screenshots build protocol sentences lock \
  format clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo         set up, then open JupyterLab on the quickstart'
	@echo 'make test         set up, then run every test'
	@echo 'make test-long    the longest schedules: state machine, comparison with plain torch, damaged files and recordings, clicks'
	@echo 'make bench        every benchmark with its bars, one after the other; BENCH="swap page" runs some'
	@echo 'make soak         an hour beside a notebook: memory of sampler and kernel, samples missed'
	@echo 'make gpu          on a machine with an NVIDIA GPU: tests, parity, rows and speed of the GPU; needs no network'
	@echo 'make gpu-kit      pack what such a machine lacks into dist/gpu-kit; KIT_PYTHON=3.11 for another Python than 3.12'
	@echo 'make check        linters, types, layers, known vulnerabilities of packages'
	@echo 'make dev          rebuild the front end on every change, with JupyterLab beside it'
	@echo 'make docs         the documentation as a site, with a recorded session in it: build/docs/index.html'
	@echo 'make screenshots  write build/screens, and those that the documents show to docs/screens'
	@echo 'make build        wheel and sdist into dist/'
	@echo 'make protocol     write the types of messages for the page from kernel_monitor/protocol'
	@echo 'make sentences    list every sentence that the product can say: tests/unit/sentences.txt'
	@echo 'make lock         renew tests/constraints.txt and package-lock.json'
	@echo 'make format       let ruff and prettier rewrite the sources'
	@echo 'make clean        remove everything that was built or installed here'

# ---- setting up: each stamp is one step, done again only when what it depends on has changed

# Two at a time: the front end is built while the Python packages come and are compiled.
setup: $(STAMPS)/venv
	@$(MAKE) --silent --no-print-directory --jobs=2 $(STAMPS)/front $(STAMPS)/labextension $(STAMPS)/ipykernel6 \
	  $(STAMPS)/experiment_logs

$(STAMPS)/venv:
	$(SAY) 'Python environment: .venv'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 …'; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv .venv || \
	  { echo 'This Python lacks its venv module; on Debian and Ubuntu: apt-get install python3-venv'; exit 1; }
	@$(PY) -m uv --version >/dev/null 2>&1 || $(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip --upgrade
	@$(PY) -m uv --version >/dev/null 2>&1 || $(PY) -m pip install --quiet --disable-pip-version-check uv
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/node:
	@command -v node >/dev/null && command -v npm >/dev/null || \
	  { echo 'Node 20.19 or newer with npm is needed: https://nodejs.org'; exit 1; }
	@node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' || \
	  { echo "Node 20.19 or newer is needed; this is $$(node --version)"; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/npm: package.json package-lock.json widgets/package.json extension/package.json .npmrc $(STAMPS)/venv $(STAMPS)/node
	$(SAY) 'npm packages: node_modules'
	@npm ci --no-progress --loglevel=error
	@touch $@

$(STAMPS)/front: $(SOURCES) $(STAMPS)/npm
	$(SAY) 'front end: kernel_monitor/static and kernel_monitor/labextension'
	@npm run --silent build:prod
	@touch $@

# Every package is pinned there, so that nothing is left to resolve.
$(STAMPS)/packages: tests/constraints.txt $(STAMPS)/venv
	$(SAY) 'Python packages (PyTorch and DALI are large: the first time takes minutes)'
	@$(UV) pip install --python $(PY) --requirements tests/constraints.txt --compile-bytecode
	@touch $@

# The front end is built by a step above; the editable install would only build it again. It writes the labextension's
# files, and removes those of before, through the link that a later step makes: away with the link first.
$(STAMPS)/python: pyproject.toml $(STAMPS)/packages | $(STAMPS)/front
	$(SAY) 'kernel_monitor, as it lies here'
	@rm -f .venv/share/jupyter/labextensions/kernel-monitor 2>/dev/null || true
	@HATCH_JUPYTER_BUILDER_SKIP_NPM=1 $(UV) pip install --python $(PY) --constraints tests/constraints.txt \
	  --editable '.[all]' --group dev
	@touch $@

# An editable install copies the labextension once; a link follows every build.
$(STAMPS)/labextension: $(STAMPS)/python
	$(SAY) 'labextension: linked into .venv'
	@$(PY) -m jupyter_builder.main develop --overwrite --log-level=WARN . >/dev/null
	@$(PY) -m jupyterlab.labextensions disable --level=sys_prefix @jupyterlab/apputils-extension:announcements >/dev/null 2>&1
	@touch $@

# The older ipykernel that is still supported, as a second kernel of the same environment.
$(STAMPS)/ipykernel6: $(STAMPS)/python
	$(SAY) 'second kernel: ipykernel 6.31'
	@$(UV) pip install --python $(PY) --target .venv/ipykernel6 --compile-bytecode --no-deps ipykernel==6.31.0 nest-asyncio==1.6.0
	@$(PY) -m ipykernel install --sys-prefix --name python3-ipykernel6 --display-name 'Python 3 (ipykernel 6)' \
	  --env PYTHONPATH "$$PWD/.venv/ipykernel6" >/dev/null
	@touch $@

# wandb, MLflow and TensorBoard in a folder of their own: frameworks log into whichever of them they can import.
$(STAMPS)/experiment_logs: tests/frameworks/experiment_logs.txt $(STAMPS)/python
	$(SAY) 'clients of experiment logs'
	@$(UV) pip install --python $(PY) --target .venv/experiment_logs --compile-bytecode --no-deps --requirements $<
	@touch $@

# Not a stamp: a browser may go away.
.PHONY: browser
browser:
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; \
	then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  printf '\033[1m==> %s\033[0m\n' 'browser: Chromium, by apt-get'; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	else \
	  echo 'The browser tests need Chromium or Google Chrome on the PATH. Debian: sudo apt-get install chromium;'; \
	  echo 'Fedora: sudo dnf install chromium; macOS: brew install --cask chromium'; exit 1; \
	fi

# ---- what people run

DISPLAYED := $(if $(or $(DISPLAY),$(WAYLAND_DISPLAY),$(filter Darwin,$(shell uname))),,--no-browser)
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
LAB := $(PY) -m jupyterlab --ServerApp.ip=127.0.0.1 $(AS_ROOT) $(DISPLAYED) \
  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate --LabApp.news_url=None

demo: setup
	$(SAY) 'JupyterLab on the quickstart: open the address below in a browser if none opens by itself; Ctrl-C ends it'
	@exec $(LAB) --LabApp.default_url=/lab/tree/example_notebooks/quickstart.ipynb

dev: setup
	$(SAY) 'front end in watch mode, JupyterLab beside it: reload the page after a change; Ctrl-C ends both'
	@npm run --silent watch & watch=$$!; trap 'kill $$watch 2>/dev/null; wait' EXIT INT TERM; $(LAB)

# Compiled once: where PYTHONDONTWRITEBYTECODE is set each of some thousand processes would do it again.
test: setup browser
	@$(PY) -m compileall -q kernel_monitor tests benchmarks
	$(SAY) 'tests'
	@$(PY) -m tests.run $(FOLDERS)

# Prints the seeds; SCHEDULES=long:SEED, CASES=long:SEED, SCRIPTS=long:SEED and RECORDING_SEED=SEED play the same again.
test-long: setup browser
	$(SAY) 'state machine: 10,000 schedules with in-process engines, 1,000 on real workers and DALI'
	@SCHEDULES=$${SCHEDULES:-long} $(PY) -m pytest tests/loaders/switching/test_state_machine.py --quiet -o faulthandler_timeout=0
	$(SAY) 'state machine on a Ray cluster: 1,000 schedules, 1,000 workers killed, 20 nodes removed'
	@SCHEDULES=$${SCHEDULES:-long} $(PY) -m pytest tests/remote/test_schedules.py --quiet -o faulthandler_timeout=0
	$(SAY) 'joins of a Ray cluster: 50 on a quiet machine, 50 beside two busy processes'
	@JOINS=$${JOINS:-50} $(PY) -m pytest tests/remote/test_joins.py -k every_join -rP -o faulthandler_timeout=0
	$(SAY) 'differential: 10,000 loaders beside plain torch'
	@CASES=$${CASES:-long} $(PY) -m pytest tests/loaders/test_differential.py --quiet -o faulthandler_timeout=0
	$(SAY) 'scripts: the whole product beside plain torch'
	@SCRIPTS=$${SCRIPTS:-long} $(PY) -m pytest tests/scripts --quiet -o faulthandler_timeout=0
	$(SAY) 'damaged JPEGs: 6,000 beside Pillow'
	@MUTANTS=$${MUTANTS:-6000} $(PY) -m pytest tests/loaders/data/test_fuzz.py --quiet -o faulthandler_timeout=0
	$(SAY) 'recordings of unknown origin: 5,000'
	@RECORDING_SEED=$${RECORDING_SEED:-$$(date +%s)} RECORDING_CASES=$${RECORDING_CASES:-5000} \
	  $(PY) -m pytest tests/record/test_unknown_origin.py --quiet -o faulthandler_timeout=0
	$(SAY) 'products of which the tests take every pair, cold swaps, a thousand simulated sessions'
	@PRODUCTS=$${PRODUCTS:-long} $(PY) -m pytest tests/loaders/test_as_torch.py tests/loaders/test_trainer.py \
	  tests/loaders/test_benchmarks.py tests/loaders/test_changes_beside_torch.py tests/unit/analysis/test_agreement.py \
	  --quiet -o faulthandler_timeout=0
	$(SAY) 'hand-written data sets: every entry on the plain DataLoader and in workers of the fork server'
	@CORPUS=$${CORPUS:-long} $(PY) -m pytest tests/loaders/data/test_datasets_corpus.py \
	  tests/loaders/engines/test_worker_start.py --quiet -o faulthandler_timeout=0
	$(SAY) 'hand-written data sets: 1,000 swaps beside threads that open images'
	@SWAPS=$${SWAPS:-1000} $(PY) -m pytest tests/loaders/data/test_own_schedules.py --quiet -o faulthandler_timeout=0
	$(SAY) 'failure injection: an exception at each call inside the package'
	@INJECT=long $(PY) -m pytest tests/loaders/switching/test_failure_injection.py --quiet -o faulthandler_timeout=0
	$(SAY) 'interrupts: 200 at random moments of a cell that switches'
	@INTERRUPTS=$${INTERRUPTS:-200} $(PY) -m pytest tests/kernel/test_interrupts.py --quiet -o faulthandler_timeout=0
	$(SAY) 'thirty clicks in a busy cell'
	@CLICKS=$${CLICKS:-30} $(PY) -m pytest tests/browser/test_swap.py --quiet

# All of them, so that one run tells every bar that is missed. On a quiet machine.
BENCH ?= loaders own_data swap diagnose overhead sampler record report page first_minute stalls watch remote
bench: setup browser
	@missed=; for name in $(BENCH); do \
	  printf '\033[1m==> %s\033[0m\n' "benchmarks.$$name"; $(PY) -m benchmarks.$$name || missed="$$missed $$name"; \
	done; test -z "$$missed" || { echo "missed a bar, or failed:$$missed"; exit 1; }

# MINUTES=5 for a shorter one.
soak: setup
	$(SAY) 'soak: an hour of a notebook with the monitor, and of one without'
	@$(PY) -m benchmarks.soak --minutes $${MINUTES:-60}

# Nothing is set up: the machine may have no network. PARTS="tests swap" runs some.
GPU_PY ?= $(if $(wildcard $(PY)),$(PY),$(PYTHON))
gpu:
	@$(GPU_PY) -m benchmarks.gpu $(if $(PARTS),--parts $(PARTS))

KIT_PYTHON ?= 3.12
gpu-kit: setup
	$(SAY) 'kit for a machine with a GPU and Python $(KIT_PYTHON): dist/gpu-kit'
	@$(PY) -m benchmarks.gpu_kit --python $(KIT_PYTHON)

# All of them, so that one run tells everything that is wrong; two at a time, as each keeps one core busy.
check: setup
	@$(MAKE) --no-print-directory --keep-going --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) \
	  check-mypy check-eslint check-layers check-tsc check-ruff check-audit

.PHONY: check-ruff check-mypy check-layers check-eslint check-tsc check-audit
check-ruff:
	$(SAY) 'ruff'
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .

check-mypy:
	$(SAY) 'mypy'
	@$(PY) -m mypy

check-layers:
	$(SAY) 'layers'
	@$(PY) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

check-eslint:
	$(SAY) 'eslint and prettier'
	@npm run --silent lint

check-tsc:
	$(SAY) 'tsc'
	@npm run --silent types

# Where the services of advisories cannot be reached, a sentence says so.
check-audit:
	$(SAY) 'pip-audit and npm audit'
	@$(PY) -m tests.audit

# A training is recorded for the embedded example, once: `make clean` or removing build/example records it anew.
docs: setup
	$(SAY) 'example session: build/example'
	@$(PY) docs/example_session.py build/example
	$(SAY) 'site: build/docs/index.html'
	@$(PY) -m sphinx --quiet --fail-on-warning --keep-going --fresh-env docs build/docs

screenshots: setup browser
	$(SAY) 'screenshots: build/screens, docs/screens'
	@$(PY) -m tests.browser.screenshots

build: setup
	$(SAY) 'wheel and sdist: dist'
	@rm -rf dist
	@$(PY) -m build --no-isolation --outdir dist .

# ---- upkeep

protocol: setup
	$(SAY) "the page's types of messages: widgets/src/stream/protocol.ts"
	@$(PY) -m tests.wire.schema | node widgets/protocol.mjs > $(STAMPS)/protocol.ts
	@mv $(STAMPS)/protocol.ts widgets/src/stream/protocol.ts

sentences: setup
	@$(PY) -m tests.sentences

lock: $(STAMPS)/venv
	$(SAY) 'tests/constraints.txt'
	@$(UV) pip compile pyproject.toml --extra all --extra ray --group dev --universal --python-version 3.11 --fork-strategy fewest --no-header \
	  --no-annotate --output-file tests/constraints.txt --upgrade
	$(SAY) 'package-lock.json: without node_modules, or npm would list this platform only'
	@rm -rf node_modules package-lock.json $(STAMPS)/npm && npm install --package-lock-only --loglevel=error

format: setup
	@$(PY) -m ruff check --fix --quiet . ; $(PY) -m ruff format .
	@npm run --silent lint:fix

clean:
	rm -rf .venv node_modules dist build kernel_monitor/static kernel_monitor/labextension widgets/lib extension/lib \
	  .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
