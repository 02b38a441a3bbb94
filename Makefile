# Everything a person or CI runs. Each target makes .venv first if it isn't there.
VENV := .venv
PYTHON_IN_VENV := $(VENV)/bin/python
PYTEST := $(PYTHON_IN_VENV) -m pytest
STAMP := $(VENV)/.setup-done

# Tests with these marks start real engines or servers. They run last, so that a plain mistake shows in seconds.
SLOW := vllm or etcd or mooncake or browser

# Two at a time: most tests wait for processes. A file's tests stay together, in their order.
SIDE_BY_SIDE := -n 2 --dist loadfile

.PHONY: help setup demo serve test test-fast soak sanitize lint format bench docs clean

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make .venv with all that development needs

$(STAMP): pyproject.toml setup.py constraints.txt constraints-helm.txt scripts/setup.sh $(wildcard store_client/hot*)
	@VENV=$(VENV) scripts/setup.sh
	@touch $@

demo: $(STAMP) ## two vLLM engines that share a pool, on this machine
	@$(VENV)/bin/moonpool demo --cache .cache

serve: $(STAMP) ## a master and a node on this machine
	@$(VENV)/bin/moonpool serve

lint: $(STAMP) ## ruff, mypy, and the C compiler's warnings where there is one
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	@PYTHON=$(PYTHON_IN_VENV) scripts/lint_c.sh

format: $(STAMP) ## ruff's formatter and its safe fixes
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

test: $(STAMP) ## every test that needs no GPU: quick ones first
	$(PYTEST) $(SIDE_BY_SIDE) --no-loadscope-reorder -m "not ($(SLOW) or gpu or soak)"
	$(PYTEST) $(SIDE_BY_SIDE) --no-loadscope-reorder -m "($(SLOW)) and not browser and not gpu" # the longest are files of one test
	$(PYTEST) -m "browser" # alone: the tests that cut links change network interfaces, which ends a browser's requests

test-fast: $(STAMP) ## the quick tests only
	$(PYTEST) $(SIDE_BY_SIDE) --no-loadscope-reorder -m "not ($(SLOW) or gpu or soak)"

soak: $(STAMP) ## the long forms of the randomised tests, and 20 minutes of chaos over etcd
	MOONPOOL_SOAK=1 $(PYTEST) --timeout=3600 -m "not ($(SLOW) or gpu)"
	MOONPOOL_SOAK=1 $(PYTEST) --timeout=3600 -s tests/chaos

sanitize: $(STAMP) ## tests of the loops in C with the sanitizers of gcc
	@PYTHON=$(PYTHON_IN_VENV) scripts/sanitize.sh

bench: $(STAMP) ## what the pool costs on this machine
	@$(VENV)/bin/moonpool bench

docs: $(STAMP) ## the tables in README.md and docs/ that come from the code
	$(PYTHON_IN_VENV) scripts/docs_tables.py

clean: ## everything that can be made again
	rm -rf $(VENV) $(VENV)-helm build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
