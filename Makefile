# Each target sets up .venv first, if it is missing or out of date.
#
#   make help    this list
#   make setup   .venv, with every distribution editable and the tools for development
#   make demo    two nodes train for real, are hurt, recover and finish
#   make check   lint, types, unit tests and 1,000 plans of the simulator: two minutes, after each small change
#   make test    core, the plugins and jobs of one host: twelve minutes; `make test ARGS="-k leader -x"` passes arguments to pytest
#   make test-nodes   jobs of several nodes: who joins, leaves, is drained or lost, and what remains
#   make test-stores  the backends, and jobs whose store is slow, silent, restarted, replaced or has forgotten
#   make test-parity  torchrun and Elastic side by side: command lines, callers, handlers, terminals, launchers
#   make test-failures  the cause that is told for each kind of failure, and what a hang is taken for
#   make test-state   what elastic-torch keeps over failures: samplers, training state, checkpoints
#   make test-pages   what README, the tutorial, the guide, the demo and the benchmarks show
#   make test-clusters  jobs on a real Slurm of four nodes, and pods as processes, on this machine (root, slurmctld, slurmd, slurm-client, munge)
#   make test-lanes   all of these seven at once, which takes less time than one after the other
#   make soak    the tests that draw lots, with many more seeds, the simulator with a million plans, stores away for a minute,
#                and the variants that everyday runs leave out (the demo over etcd, file and Redis, and the like); then `make mutants`
#   make mutants changes the rendezvous in every small way, and lists the changes that neither unit tests nor the simulator notice;
#                `make mutants ARGS="leader --again"` tries one module, and what has survived before once more
#   make lint    ruff and mypy, both strict, and codespell
#   make tox     every distribution alone with core, and core on every Python that is here
#   make bench   measures what benchmarks/RESULTS.md says, and rewrites its tables: bench-launchers, bench-rendezvous,
#                bench-snapshots, bench-silence, bench-progress, bench-policies and bench-spares, each of which takes arguments: `make bench-rendezvous ARGS="--sizes=64 --runs=5"`
#   make bench-frameworks kills a worker of Hugging Face's Trainer, and measures until it trains again (installs 1.2 GB below .tox)
#   make clean   removes .venv and all caches

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := setup
LANES := failures state parity nodes clusters pages stores
.PHONY: help setup compiled demo check test $(LANES:%=test-%) test-lanes soak mutants lint tox bench bench-launchers bench-rendezvous bench-snapshots bench-silence bench-progress bench-policies bench-spares bench-frameworks clean
.NOTPARALLEL:  # what measures has the machine to itself

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo_ready
DISTRIBUTIONS := core $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml)) $(addprefix examples/,plugin checkpointing)
# The demo, over each of its backends, needs these, torch, and the data of scikit-learn.
DEMO_DISTRIBUTIONS := core $(addprefix plugins/,c10d causes etcd file redis torch warmstart)
# The folders that mypy reads.
TYPED := core plugins examples simulator tests benchmarks docs
# The lanes, and the tests of each, the longest first.
jobs = $(patsubst %,tests/test_%.py,$(1))
stores := $(patsubst %,plugins/%/tests,c10d etcd file redis) \
    $(call jobs,redis_jobs silent_stores outages etcd lost_history replaced_master late_stores)
nodes := $(call jobs,nodes host_jobs hosts graceful health slots latecomers chaos kills resizes listeners)
parity := $(call jobs,foreign_handlers) tests/parity plugins/torchrun/tests \
    $(call jobs,python_api torchrun migrating error_file tcp_init surface exec terminals etcd_torchrun launchers)
failures := $(call jobs,hangs writing_ranks computing_ranks hanging_ranks failure_stories absent_ranks ranks_apart causes \
    more_failure_stories acme_failures first_cause watchdog)
state := plugins/torch/tests \
    $(call jobs,train_state examples rank_state rescue prepared_loaders full_disk sharded_state torn_checkpoints fsdp_example)
pages := $(call jobs,demo plugin_docs bench readme guide) tests/simulator/test_mutation.py $(call jobs,tutorial)
clusters := plugins/slurm/tests plugins/kubernetes/tests $(call jobs,kubernetes slurm)
PYTEST = $(BIN)/python -m pytest --numprocesses=$(RUNNERS) --dist=loadfile --no-loadscope-reorder
# The longest test first.
QUICK := tests/simulator/test_simulator.py core/tests plugins/testing/tests tests/test_layers.py tests/test_docs.py
ARGS ?=
SEEDS ?= 100
# Many tests wait more than they work.
RUNNERS ?= 4
PLANS ?= 1000000
OUTAGE ?= 60

# One version of torch everywhere. Without a GPU set PIP_EXTRA_INDEX_URL as in CONTRIBUTING.md, else gigabytes of CUDA come along.
export PIP_CONSTRAINT := $(CURDIR)/requirements/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# tox finds the Pythons on PATH by itself; pyenv hides all but the chosen one behind its shims.
PYENV_PYTHONS := $(wildcard $(PYENV_ROOT)/versions/3.1[0-9].*/bin/python)
empty :=
export TOX_DISCOVER ?= $(subst $(empty) $(empty),:,$(strip $(PYENV_PYTHONS)))

help:
	@sed -n 's/^#   //p' Makefile

setup: $(READY)

# A line for each stage, with large downloads and how long it took. pip shows none of that when it is quiet, and too much when it is not.
stage = echo "  $(1)"; began=$$SECONDS; $(2); echo "    done in $$((SECONDS - began)) s"
pip = $(BIN)/python -m pip install $(1) | sed -une 's|^ *Downloading \(.*/\)*\(.* MB)\)$$|    downloading \2|p' -e 's|^Installing .*|    unpacking|p'
editable = $(call stage,$(words $(1)) distributions of this repository (editable),$(call pip,--no-build-isolation $(1:%=-e ./%)))

# The first of these that runs and is new enough: a pyenv shim may be there and yet lead nowhere.
$(DEMO_READY): Makefile requirements/constraints.txt $(DEMO_DISTRIBUTIONS:=/pyproject.toml)
	@for python in $(PYTHON) python3.11 python3; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	[ -n "$${found:-}" ] || { echo "Elastic needs Python 3.10 or newer; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	echo "setting up $(VENV) with $$("$$found" --version)"; \
	[ -x $(BIN)/python ] || { $(call stage,the virtual environment,"$$found" -m venv $(VENV)); }
	@$(call stage,torch (a CPU build is 200 MB; a CUDA build is gigabytes),$(call pip,torch numpy hatchling editables))
	@$(call stage,the digits of scikit-learn,$(call pip,--no-deps scikit-learn))
	@$(call editable,$(DEMO_DISTRIBUTIONS))
	@touch $@

$(READY): $(DEMO_READY) $(wildcard requirements/*.txt) $(DISTRIBUTIONS:=/pyproject.toml)
	@$(call stage,the tools for tests and development,$(call pip,-r requirements/dev.txt))
	@$(call editable,$(filter-out $(DEMO_DISTRIBUTIONS),$(DISTRIBUTIONS)))
	@touch $@

# Where PYTHONDONTWRITEBYTECODE is set, each of the thousands of agents that tests start would compile its modules anew,
# which is a third of its CPU time. What is compiled already takes a fraction of a second.
compiled: setup
	@$(BIN)/python -m compileall -q $(TYPED)

demo: $(DEMO_READY)
	$(BIN)/python examples/digits/demo.py $(ARGS)

# mypy has one core meanwhile.
check: compiled
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	@$(BIN)/mypy $(TYPED) > $(VENV)/mypy.txt 2>&1 & types=$$!; \
	echo "mypy $(TYPED), beside the tests"; \
	$(BIN)/python -m pytest --numprocesses=$(RUNNERS) --plans=1000 -m "not slow" $(QUICK) $(ARGS) || tests=$$?; \
	wait $$types || tests=$$?; cat $(VENV)/mypy.txt; exit $${tests:-0}

test: compiled
	$(PYTEST) $(addprefix --ignore=,$(foreach lane,$(LANES),$($(lane)))) $(ARGS)

$(LANES:%=test-%): test-%: compiled
	$(PYTEST) $($*) $(ARGS)

test-lanes: compiled
	$(PYTEST) $(foreach lane,$(LANES),$($(lane))) $(ARGS)

soak: compiled
	$(BIN)/python -m pytest --seeds=$(SEEDS) --plans=$(PLANS) --outage=$(OUTAGE) -m soak --timeout=3600 $(ARGS)
	$(MAKE) mutants ARGS=

mutants: setup
	PYTHONPATH=tests/harness $(BIN)/python -m mutation --results=$(VENV)/mutants.jsonl $(ARGS)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/mypy $(TYPED)

tox: setup
	$(BIN)/tox run-parallel --parallel=auto --parallel-no-spinner $(ARGS)

bench: bench-launchers bench-rendezvous bench-snapshots bench-silence bench-progress bench-policies bench-spares

bench-launchers bench-rendezvous bench-snapshots bench-silence bench-progress bench-policies bench-spares: bench-%: setup
	PYTHONPATH=tests/harness:tests/workers:plugins/etcd/tests/harness $(BIN)/python -m benchmarks.$* $(ARGS)

bench-frameworks: setup
	$(BIN)/tox exec -e frameworks -- python -m benchmarks.frameworks $(ARGS)

clean:
	rm -rf $(VENV) .tox .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
