# Two commands for newcomers: make demo, make test. Everything is installed into .venv, from constraints.txt.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test slow lint types format check bench trl-versions docs clean

demo: $(VENV)/ready
	$(BIN)/python src/run.py sweeps=lr_batch

test: $(VENV)/ready
	$(BIN)/python -m pytest -n auto

slow: $(VENV)/ready
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/ready
	$(BIN)/python benchmarks/start_up.py
	$(BIN)/python benchmarks/warm_start.py

# Older TRL releases, each in an environment of its own under .venvs; gigabytes and minutes.
trl-versions: $(VENV)/ready
	$(BIN)/python benchmarks/trl_versions/run.py

docs: $(VENV)/ready
	$(BIN)/python -m grposweep.rules.document

# The stamp is newer than what it was made from, or made again.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) outputs
