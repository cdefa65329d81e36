PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help venv site demo test test-all test-cluster test-browser pictures cluster-packages browser-packages apt audit lint check simulate bench bench-peers clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort

$(STAMP): pyproject.toml requirements-dev.txt requirements-frameworks.txt requirements-cluster.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dashboard,demo,pandas,s3,tune,hyperopt,nevergrad,bayesopt,ax,pb2]' -r requirements-dev.txt
	# By themselves: pip takes many minutes to find out that all of them fit together, and seconds one after the other.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[data,transformers,xgboost,lightgbm,lightning,jax]' -r requirements-frameworks.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[mlflow,wandb,comet,prometheus]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-cluster.txt
	# DeepSpeed is built here, with the torch that is here and without kernels of its own: CPUs need none.
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation 'deepspeed>=0.19'
	@touch $@

venv: $(STAMP)  ## the development environment in .venv

site: $(STAMP)  ## the documentation as a site, in site/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	$(BIN)/python -m mkdocs build --strict --quiet

demo: $(STAMP)  ## train a small network on handwritten digits with two workers
	$(BIN)/python examples/digits.py

test: $(STAMP)  ## the test suite
	$(BIN)/python -m pytest

test-all: $(STAMP)  ## the test suite with its slow part: each framework's example, many more simulated runs
	SCHEDULES=$(or $(N),40000) $(BIN)/python -m pytest --thorough --timeout 600

cluster-packages:  ## what the tests of clusters need of Debian: SLURM, munge, iproute2
	@for file in /usr/sbin/slurmctld /usr/sbin/munged /usr/bin/srun /sbin/ip; do test -x $$file || exec $(MAKE) --no-print-directory apt; done

apt:
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurm-wlm munge iproute2

browser-packages:  ## what the tests of the dashboard need of Debian: Chromium
	@command -v chromium > /dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; }

test-browser: $(STAMP)  ## the tests of the dashboard in Chromium alone
	$(BIN)/python -m pytest tests/browser

pictures: $(STAMP)  ## the screenshots of the docs, from the tests of the dashboard
	SHOAL_PICTURES=docs/pictures $(BIN)/python -m pytest tests/browser

test-cluster: $(STAMP)  ## the tests with real SLURM daemons and Ray nodes alone
	$(BIN)/python -m pytest tests/cluster tests/unit/test_clusters.py

audit: $(STAMP)  ## known vulnerabilities of what is installed; needs the network
	$(BIN)/pip-audit --local --skip-editable

lint: $(STAMP)  ## style, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test  ## everything that must be green

simulate: $(STAMP)  ## many simulated runs with faults at every point: make simulate N=1000000
	SCHEDULES=$(or $(N),200000) $(BIN)/python -m pytest tests/simulation --timeout 0

bench: $(STAMP)  ## speed of this machine, as ratios against the peers that are installed
	$(BIN)/python -m benchmarks

bench-peers: ## a second environment with the peers, for make bench
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy pandas 'ray[train,tune]==2.60.0' optuna

clean:  ## remove what the targets above made
	rm -rf $(VENV) .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/results
