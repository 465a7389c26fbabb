# Each target does all its own set-up, on a machine that has just been unpacked.
#   make demo    see a training crash, resume and finish
#   make test    lint, types, layers and every test; real SLURM and its accounting where they can be installed; the tests
#                of `make quick` on each other Python from 3.11 to 3.14
#   make quick   lint, types, layers and the tests without SLURM, frameworks and long waits: a minute
.PHONY: demo test packages environment compiled frameworks trackers browser quick lint size bench soak night chaos releases coverage docs docs-site \
	docs-serve dist lock clean

# Tests start Python a thousand times: compiled once, it starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
WORKERS ?= 8
# A process of the tests that dies fails the run; with another one in its place, pytest-xdist 3.8 waits for ever.
PYTEST := $(BIN)/python -m pytest --dist loadgroup --max-worker-restart 0 -q
SLURM_RELEASE ?= /var/cache/resil/slurm-trixie

demo:
	@scripts/environment
	@$(BIN)/resil demo

# make test WITH=frameworks: the tests of tests/integrations as well. WITH=trackers, WITH=browser: others.
test:
	@$(MAKE) -j4 --output-sync=target --no-print-directory lint packages compiled $(WITH)
	$(PYTEST) -n $(WORKERS)
	@scripts/other-pythons

packages:
	@scripts/system-packages --accounting

environment:
	@scripts/environment dev

# Frameworks that find one of them use it by themselves: not beside those of `frameworks`.
trackers: environment
	@$(BIN)/python -m pip install -q --no-compile wandb mlflow-skinny tensorboard

# A hundred megabytes.
browser:
	@scripts/system-packages --browser

# Each process of pytest would compile every test for itself: 13 s of work, eight times. A test that cannot be collected
# is reported by the run.
compiled: environment
	@$(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || true

# What tests/integrations tests: gigabytes.
frameworks: environment
	@scripts/frameworks

quick: lint
	$(PYTEST) -n 2 --quick

lint: environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Lines of code by room; docs/measured/ keeps them.
size:
	@python3 scripts/size.py

# The tests of tests/slurm once more, against another release of SLURM (Debian trixie's 24.11). Needs root.
releases:
	@scripts/environment dev
	@scripts/system-packages --accounting
	@scripts/slurm-release $(SLURM_RELEASE)
	RESIL_TEST_SLURM=$(SLURM_RELEASE) $(PYTEST) -n $(WORKERS) tests/slurm

coverage:
	@scripts/environment dev
	@$(BIN)/python -m pip install -q -c requirements-dev.lock coverage
	$(BIN)/coverage run -m pytest -q --quick
	$(BIN)/coverage report --skip-covered --sort=cover
	$(BIN)/coverage html -d build/coverage -q

# Long campaigns, run by hand; their results are kept under docs/measured/.
soak:
	@scripts/environment dev
	@scripts/system-packages
	RESIL_SOAK=1 $(BIN)/python -m pytest -m soak -q --timeout 7200

# Fifteen faults one after the other in one training on a real SLURM: ten minutes or more. Its timeline goes to
# build/night.svg, its report to build/night.html, the page about its hang to build/hang.html.
night:
	@scripts/environment dev
	@scripts/system-packages
	RESIL_SOAK=1 RESIL_NIGHT_SVG=build/night.svg $(BIN)/python -m pytest -q -s tests/slurm/test_night.py

# 200 nights of random faults, each a function of its seed, on four SLURMs at a time: an hour or more on 2 cores. The table
# goes to build/chaos/chaos.md, and what a night that went wrong left beside it.
#   RESIL_CHAOS_SEED=17 make chaos      one night again
#   RESIL_CHAOS_NIGHTS=20 make chaos    fewer
chaos:
	@scripts/environment dev
	@scripts/system-packages
	RESIL_SOAK=1 RESIL_CHAOS_NIGHTS=$${RESIL_CHAOS_NIGHTS:-200} RESIL_CHAOS_TABLE=build/chaos/chaos.md \
		$(BIN)/python -m pytest -q -s tests/slurm/test_chaos.py

bench:
	@scripts/environment dev
	@scripts/system-packages
	$(BIN)/python -m benchmarks

# The parts of docs/ that are made from the code: reference pages and the README's picture.
docs:
	@scripts/environment dev
	$(BIN)/python scripts/make_docs.py

# The documentation as a site, in build/site.
docs-site:
	@scripts/environment dev
	@$(BIN)/python -m pip install -q -c requirements-dev.lock mkdocs-material
	$(BIN)/mkdocs build --strict -q

docs-serve: docs-site
	$(BIN)/mkdocs serve

# Both distributions, checked, installed into a bare environment and run there.
dist:
	@scripts/environment dev
	@$(BIN)/python -m pip install -q -c requirements-dev.lock build twine
	rm -rf dist
	$(BIN)/python -m build -o dist
	$(BIN)/twine check --strict dist/*
	scripts/try-dist dist/*.whl

# The versions of everything that tests, documentation and releases are made with.
lock:
	@scripts/environment dev
	@$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q pyproject.toml --extra dev --group dev --group docs --group release --universal \
		--python-version 3.11 --upgrade --no-header --no-annotate -o requirements-dev.lock

clean:
	rm -rf .venv .venv-3.1? .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
