# Every action, by name. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= out
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
DOCUMENTED := $(VENV)/.documented
# pip would compile all that it installs before anything runs; Python compiles what is imported, when it is.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# The setuptools that is there builds the project, and no copy of it for every build.
PROJECT := $(PIP) --no-build-isolation -e
# Python keeps what it has compiled, also where a shell tells it not to: many a test starts a process.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint types format bench tutorials docs clean

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The virtual environment is made once and again whenever the dependencies change; what only tests, tools and
# documentation need is added when it is asked for.
$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip setuptools wheel
	$(PIP) torch
	$(PROJECT) .
	touch $@

$(READY): $(INSTALLED)
	$(PROJECT) '.[dev]'
	touch $@

$(DOCUMENTED): $(READY)
	$(PROJECT) '.[docs]'
	touch $@

setup: $(READY) ## make the virtual environment .venv

demo: $(INSTALLED) ## grade two guides against NUTS on data inside scikit-learn; about a minute
	$(BIN)/zoo compare diabetes --guides mean-field,spike-slab --reference nuts --budget quick --out $(OUT)/demo
	@echo "look at $(OUT)/demo/scoreboard.png and $(OUT)/demo/scatter.png"

test: $(READY) ## fast tests; ZOO_DATA=FOLDER adds those that need downloads
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(READY) ## the longer statistical tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow

lint: $(READY) ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## check the types of the public modules; half a minute the first time
	$(BIN)/mypy

format: $(READY) ## put style and format right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## speed, as ratios measured side by side
	$(BIN)/python benchmarks/svi_step.py
	$(BIN)/python benchmarks/reference.py
	$(BIN)/python benchmarks/message_passing.py
	$(BIN)/python benchmarks/message_passing_robustness.py
	$(BIN)/python benchmarks/sparse_implicit_process.py
	$(BIN)/python benchmarks/bootstrap.py
	$(BIN)/python benchmarks/edge_graph.py

tutorials: $(READY) ## render tutorials/*.py to notebooks in out/tutorials
	mkdir -p $(OUT)/tutorials
	for file in tutorials/*.py; do $(BIN)/jupytext --to ipynb --output $(OUT)/tutorials/$$(basename $$file .py).ipynb $$file; done

docs: $(DOCUMENTED) ## build the documentation site, out/docs/index.html; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d $(OUT)/docs-read docs $(OUT)/docs
	@echo "look at $(OUT)/docs/index.html"

clean: ## remove what was built, the virtual environment too
	rm -rf $(VENV) $(OUT) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
