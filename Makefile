# `make demo` and `make test` do all their set-up themselves: Python ≥ 3.11 and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two set-ups: what running needs, and what testing needs on top.
RUN := $(VENV)/.run
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable

.PHONY: demo test test-compose lint model format clean

$(RUN): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Greenroom needs Python 3.11 or later, this is %d.%d" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Greenroom into $(VENV) …"
	@$(PIP) '.[embedded,fake,gateway]'
	@touch $@

$(READY): $(RUN)
	@echo "installing what the tests need …"
	@$(PIP) '.[dev]'
	@touch $@

demo: $(RUN) ## three workers, sixty chats, twenty seconds
	@$(BIN)/greenroom demo $(ARGS)

# All of them with coverage; with ARGS='-k queue' or the like, only those, and without.
test: $(READY) ## on fakeredis and on a real redis-server
ifeq ($(ARGS),)
	@$(BIN)/coverage erase
	@$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=
	@$(BIN)/coverage report --fail-under=95
else
	@$(BIN)/python -m pytest -n 2 $(ARGS)
endif

test-compose: $(READY) ## docker-compose.yml, really built and run; COMPOSE='docker compose' is the command for it
	$(BIN)/python -m pytest tests/compose -m compose $(ARGS)

lint: $(READY) ## ruff, mypy --strict, and luacheck where it is installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@rm -rf $(VENV)/lua && mkdir -p $(VENV)/lua
	@$(BIN)/python -c 'import pathlib, coordinator.scripts as s; s.write(pathlib.Path("$(VENV)/lua"))'
	@if command -v luacheck >/dev/null; then luacheck --no-color -q $(VENV)/lua/*.lua --config .luacheckrc; \
	else echo "luacheck is not installed: Lua is not linted"; test -z "$$CI"; fi

model: $(READY) ## the state machine, for longer
	GREENROOM_MODEL_EXAMPLES=5000 $(BIN)/python -m pytest tests/model -n 2 --timeout 3600 $(ARGS)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .redis dist .coverage* .hypothesis .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
