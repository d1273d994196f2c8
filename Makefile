# Everything a clone needs, in a virtual environment of its own (.venv). Each step leaves a stamp there, so the second
# run starts at once. PYTHON=... chooses the interpreter; otherwise the first that is new enough is taken.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

candidates := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)
venv := .venv
bin := $(venv)/bin
# Runs a talkative command; what it said is shown only if it fails.
logged = $(1) > $(venv)/build.log 2>&1 || { cat $(venv)/build.log >&2; exit 1; }
core := Cargo.toml Cargo.lock pyproject.toml $(shell find rust -name '*.rs')

# maturin and pyo3 look for the interpreter here; maturin refuses to choose when conda has one too.
export VIRTUAL_ENV := $(abspath $(venv))
unexport CONDA_PREFIX
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo build test loom lint bench compare wheel hosts clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(venv)/.built $(venv)/.extra-examples ## Train a small network on four processes
	@echo "arx: arx run -n 4 examples/train_digits.py"
	$(bin)/arx run -n 4 examples/train_digits.py

build: $(venv)/.built ## Build the core and install arx into .venv; Python files stay editable

test: $(venv)/.built $(venv)/.extra-test $(venv)/.extra-examples $(venv)/.peers ## Rust tests, then Python tests
	@echo "arx: cargo test"
	cargo test --quiet
	echo "arx: pytest"
	$(bin)/python -m pytest -q -n 2 --dist worksteal $(PYTEST_ARGS)

loom: ## The lock-free parts under every interleaving (tests/loom_*.rs)
	@echo "arx: loom"
	export RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=$${LOOM_MAX_PREEMPTIONS:-2} CARGO_PROFILE_RELEASE_LTO=off
	cargo test --release --quiet --target-dir target/loom --test 'loom_*'

lint: $(venv)/.built $(venv)/.extra-dev ## Formatting, clippy, ruff, mypy, stubs against the compiled module
	@set -x
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	cargo clippy --quiet --lib --features python -- -D warnings
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy --strict
	$(bin)/python -m mypy.stubtest arx._arx

bench: $(venv)/.built $(venv)/.extra-bench ## Time the collectives (pytest-benchmark) and the kernels (criterion)
	@$(bin)/python -m pytest benches --benchmark-only $(PYTEST_ARGS)
	cargo bench

compare: $(venv)/.built ## Time arx against Open MPI, MPICH, Intel MPI and gloo by turns; writes benches/record/
	@$(bin)/python benches/compare.py --record

wheel: $(venv)/.extra-wheel ## Build the manylinux wheel into dist/ and try it in clean environments
	@rm -rf dist
	echo "arx: building the wheel"
	PATH=$(abspath $(bin)):$$PATH
	$(call logged,maturin build --release --zig --compatibility manylinux2014 --out dist)
	tests/wheel.sh dist/arx-*.whl

hosts: | $(venv)/.made ## Install what the tests of several hosts need, where that is possible: as root, on Debian or Ubuntu
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
		type -P ip tc srun slurmd slurmctld ssh sshd > /dev/null && exit
		echo "arx: installing iproute2, slurm-wlm and openssh"
		export DEBIAN_FRONTEND=noninteractive
		{ apt-get update && apt-get install --yes --no-install-recommends iproute2 slurm-wlm openssh-client openssh-server; } > $(venv)/hosts.log 2>&1 ||
			echo "arx: not all of it could be had, see $(venv)/hosts.log"
	else
		echo "arx: not root, or no apt-get: the tests of several hosts are skipped, or use what is there"
	fi

clean: ## Remove what make and cargo have made
	@rm -rf $(venv) .bench-venvs target dist python/arx/*.so

# What the targets above stand on.

$(venv)/.made:
	@command -v cargo > /dev/null || { echo "arx: needs a Rust toolchain; there is no cargo on the PATH" >&2; exit 1; }
	for python in $(candidates); do
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || continue
		echo "arx: making $(venv) with $$("$$python" --version)"
		"$$python" -m venv $(venv) || {
			echo "arx: that failed; on Debian and Ubuntu, apt install python3-venv helps" >&2; exit 1; }
		touch $@
		exit
	done
	echo "arx: needs Python 3.11 or newer, and found none as: $(candidates). PYTHON=... names another" >&2
	exit 1

# One stamp for each list of requirements in pyproject.toml: an extra, or `build` for what the build itself needs.
list_requirements := import sys, tomllib; project = tomllib.load(sys.stdin.buffer); \
	extras = {**project["project"]["optional-dependencies"], "build": project["build-system"]["requires"]}; \
	print(*extras[sys.argv[1]], sep="\n")

$(venv)/.extra-%: pyproject.toml | $(venv)/.made
	@echo "arx: installing what '$*' needs"
	$(bin)/python -c '$(list_requirements)' $* < pyproject.toml > $(venv)/requirements-$*.txt
	$(bin)/pip install --quiet --requirement $(venv)/requirements-$*.txt
	touch $@

# Real launchers for the launcher tests. One that cannot be had is no failure: its tests are skipped and say why.
$(venv)/.peers: benches/peers.py | $(venv)/.made
	@echo "arx: installing Open MPI, MPICH and Intel MPI for the launcher tests, each in .bench-venvs"
	$(bin)/python benches/peers.py || echo "arx: not all of them could be had"
	touch $@

$(venv)/.built: $(core) $(venv)/.extra-build
	@echo "arx: building the core; the first time takes a minute or two"
	$(call logged,$(bin)/maturin develop --release)
	touch $@
