# Everything a developer or CI runs. `make` alone lists the targets.
#
#   PYTHON=python3.12 make setup      another Python than the first fit one on the path
#   make test ARGS="-k rowids -x"     arguments for serve, quick, test and bench
#   make test WORKERS=0               all in one process, as a debugger needs it
#
# The first target that needs it makes .venv from the lock files; nothing is
# installed outside of it but Java, and that only where it is missing.

SHELL := /bin/sh
MAKEFLAGS += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help

PYTHON ?=
ARGS ?=
# Each has a Spark of its own, which keeps a core and 3 GB of memory busy.
WORKERS ?= 2
BIN := .venv/bin
LOCK := $(BIN)/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url \
	--no-emit-find-links --no-header

.PHONY: help setup serve quick test bench soak lint docs lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.jars ## make .venv with the locked packages and Delta's jars
	@echo "Set up: $(BIN)/deltaport"

serve: .venv/.jars ## run the gateway with demo tables
	@$(BIN)/deltaport serve --demo $(ARGS)

quick: .venv/.packages ## run the tests that need no Spark, in under two minutes
	@$(BIN)/pytest -m "not spark" $(ARGS)

test: .venv/.jars ## run all tests
	@$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

bench: .venv/.jars ## measure; never part of the tests
	@$(BIN)/python -m tests.bench $(ARGS)

soak: .venv/.jars ## work on a gateway that is killed again and again, and prove that nothing is lost
	@$(BIN)/python -m tests.system.soak $(ARGS)

lint: .venv/.packages ## check style and types
	@$(BIN)/ruff check .
	@$(BIN)/mypy

docs: .venv/.packages ## build the documentation into site/; a dead link fails
	@$(BIN)/python -m deploy.docs.configuration
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "Built: site/index.html"

lock: .venv/.packages ## resolve both lock files anew; ARGS=--upgrade for newer versions
	@echo "Resolving requirements.lock"
	@$(LOCK) $(ARGS) --output-file requirements.lock pyproject.toml
	@echo "Resolving requirements-dev.lock"
	@$(LOCK) $(ARGS) --constraint requirements.lock --extra dev --output-file requirements-dev.lock pyproject.toml

clean: ## remove .venv, build products and caches; tables are kept
	@rm -rf .venv build dist site bench-results .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	@rm -rf spark-warehouse metastore_db derby.log
	@find gateway tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@if [ -d warehouse ]; then echo "Kept: warehouse/ holds tables; remove it yourself if nobody needs them."; fi

# Two stamps, so that a failed download of the jars does not cost the packages again.
.venv/.packages: requirements-dev.lock pyproject.toml deploy/setup/venv.sh
	@PYTHON="$(PYTHON)" deploy/setup/venv.sh

.venv/.jars: .venv/.packages gateway/lake/spark/jars_data/ivy.xml gateway/lake/spark/jars_data/SHA256SUMS deploy/setup/java.sh
	@deploy/setup/java.sh $(BIN)/python
	@$(BIN)/deltaport fetch-jars
	@touch $@
