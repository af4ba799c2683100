# Four commands do everything: make compare, make test, make lint, make bench. `make help` lists the others.
# Each makes .venv and installs what it needs; a stamp in .venv says that it is done, and a change of pyproject.toml or
# constraints.txt undoes it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
ARGS ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help compare test lint format bench bench-smoke bench-scale smoke wheel clean

help:
	@echo "make compare [ARGS=...]   train the four architectures and print the table (ARGS: see .venv/bin/mpnn compare --help)"
	@echo "make test [ARGS=...]      run the test suite (ARGS go to pytest)"
	@echo "make lint                 format check, lint and types; make format repairs what it can"
	@echo "make bench [ARGS=...]     time everything beside its peers; bench-smoke is short, bench-scale long"
	@echo "make smoke                run the examples and the programs, briefly; includes bench-smoke and wheel"
	@echo "make wheel                build the wheel and import it alone"
	@echo "make clean                remove .venv and everything that the tools wrote"

compare: $(VENV)/.train
	$(BIN)/mpnn compare $(ARGS)

test: $(VENV)/.scatter
	$(BIN)/python -m pytest -n 2 $(ARGS)

# The one command of the hooks and of CI. It changes nothing.
lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.scatter
	$(BIN)/python -m benchmarks.run $(ARGS)

bench-smoke: $(VENV)/.train
	$(BIN)/python -m benchmarks.run --smoke $(ARGS)

bench-scale: $(VENV)/.scatter $(VENV)/.peers
	$(BIN)/python -m benchmarks.run --scale $(ARGS)

# In a folder of its own and from nothing: a run that is already there would be continued, not made.
smoke: $(VENV)/.scatter wheel
	rm -rf .smoke && mkdir .smoke
	set -e; for example in examples/*.py; do echo "$$example --smoke"; $(BIN)/python "$$example" --smoke; done
	cd .smoke && ../$(BIN)/mpnn compare --steps 20 --seeds 1
	cd .smoke && ../$(BIN)/mpnn sweep --quick --steps 5 --positions none
	cd .smoke && ../$(BIN)/mpnn atlas
	$(MAKE) bench-smoke

# The wheel is unpacked beside .venv, not into it, so that the import can only find what the wheel holds.
wheel: $(VENV)/.dev
	rm -rf dist build/wheel
	$(BIN)/python -m build --wheel --outdir dist
	$(PIP) --no-deps --target build/wheel dist/*.whl
	cd build/wheel && PYTHONPATH=. ../../$(BIN)/python -c \
	    "import mpnn, os; assert os.path.samefile(mpnn.__path__[0], 'mpnn'), mpnn.__path__; print('the wheel imports alone')"

clean:
	rm -rf $(VENV) .smoke build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"mpnn needs Python 3.11 or newer, $(PYTHON) is \
	{v[0]}.{v[1]}; try make PYTHON=python3.11" if v < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.train $(VENV)/.test $(VENV)/.dev $(VENV)/.peers: $(VENV)/.%: $(VENV)/.made pyproject.toml constraints.txt
	@echo "installing mpnn[$*] into $(VENV): minutes the first time"
	$(PIP) --editable ".[$*]"
	@touch $@

# torch_scatter is built against the torch of .venv, so the stamp holds torch's version, and so does the name of the
# folder where pip keeps the built wheel. Two compilers at once and no debug symbols make it three minutes instead of six.
# Without a compiler the suite still runs: the tests that need torch_scatter are skipped and say so.
SCATTER_LOG := $(VENV)/torch_scatter.log
$(VENV)/.scatter: $(VENV)/.test
	@torch=$$($(BIN)/python -c 'import torch; print(torch.__version__)') || exit 1; \
	if [ "$$(cat $@ 2>/dev/null)" = "$$torch" ]; then touch $@; exit 0; fi; \
	$(PIP) setuptools wheel || exit 1; \
	echo "building torch_scatter against torch $$torch: minutes, once (log: $(SCATTER_LOG))"; \
	printf '[build_ext]\nparallel = 2\n' >$(VENV)/parallel.cfg; \
	if DIST_EXTRA_CONFIG=$(CURDIR)/$(VENV)/parallel.cfg CFLAGS="$$CFLAGS -g0" \
	    $(BIN)/python -m pip install --constraint constraints.txt --no-build-isolation --no-deps --force-reinstall \
	        --cache-dir "$${XDG_CACHE_HOME:-$$HOME/.cache}/mpnn/torch-$$torch" torch_scatter >$(SCATTER_LOG) 2>&1 \
	    && $(BIN)/python -c 'import torch_scatter' >>$(SCATTER_LOG) 2>&1; \
	then echo "$$torch" >$@; \
	else echo "torch_scatter could not be built, so its tests are skipped (rm $@ to try again); the log ends:"; \
	    tail -n 5 $(SCATTER_LOG); $(BIN)/python -m pip uninstall --quiet --yes torch_scatter; echo failed >$@; \
	fi
