# Two commands for a fresh machine: `make gate` measures, `make test` checks this project itself.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
TESTS ?= tests
JOBS ?= 2

.PHONY: gate test lint types contracts check slow fuzz docs clean

gate: $(VENV)/.gate
	$(VENV)/bin/python -m pytest --comm-regress $(ARGS)

test: lint types contracts check

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .

types: $(VENV)/.dev
	$(VENV)/bin/mypy

contracts: $(VENV)/.dev
	$(VENV)/bin/lint-imports

check: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m "not slow" $(TESTS) $(ARGS)

# Minutes of real gates, for a machine that does nothing else meanwhile.
slow: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m slow $(TESTS) $(ARGS)

# Coverage-guided fuzzing of what reads foreign files, so many seconds for each reader; minutes are for a desk.
FUZZ_SECONDS ?= 300
FUZZED ?= yaml thresholds run sqlite kineto
fuzz: $(VENV)/.dev
	for reader in $(FUZZED); do $(VENV)/bin/python -m tests.fuzz.atheris_readers $$reader $(FUZZ_SECONDS) || exit; done

docs: $(VENV)/.dev
	$(VENV)/bin/python -m regress.reference docs
	$(VENV)/bin/python -m tests.diagnose.rules_page docs

$(VENV)/.gate: pyproject.toml .ci/venv
	.ci/venv $(PYTHON) $(VENV) gate
	touch $@

$(VENV)/.dev: pyproject.toml .ci/venv
	.ci/venv $(PYTHON) $(VENV) dev
	touch $@ $(VENV)/.gate

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
