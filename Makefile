# Each target does all its own set-up, on a machine that has just been unpacked.
#   make demo    see a training crash, resume and finish
#   make test    lint, types, floors and every test; real SLURM and its accounting where they can be installed
.PHONY: demo test lint bench soak docs clean

# Tests start Python a thousand times: compiled once, it starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
WORKERS ?= 6

demo:
	@scripts/environment
	@$(BIN)/resil demo

test: lint
	@scripts/system-packages --accounting
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -q

lint:
	@scripts/environment dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Long campaigns, run by hand; their results are kept under docs/measured/.
soak:
	@scripts/environment dev
	@scripts/system-packages
	RESIL_SOAK=1 $(BIN)/python -m pytest -m soak -q --timeout 7200

bench:
	@scripts/environment dev
	@scripts/system-packages
	$(BIN)/python -m benchmarks

# The parts of docs/ that are made from the code: reference pages and the README's picture.
docs:
	@scripts/environment dev
	$(BIN)/python scripts/make_docs.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
