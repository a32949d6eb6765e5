# `make demo` and `make test` do all of their own set-up from nothing: Python 3.11+ and make are all they need.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)

# uv does not read pip's folder of local wheels; a space-separated list there is a comma-separated one here.
empty :=
space := $(empty) $(empty)
comma := ,
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(subst $(space),$(comma),$(strip $(PIP_FIND_LINKS)))
endif

# Bytecode goes to a cache of the environment's own, whatever the machine says: without any, every process that a test
# starts would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache

# Processes that share the tests.
WORKERS ?= 2

# What `make demo` makes; it may be deleted at any time.
DEMO   := demo
MODEL  := prota/models/prota-small/model.safetensors

.PHONY: demo test check setup browser lint types pytest fast coverage windows numerics docs pictures bench format clean

test: lint types pytest

# In a minute or so: without what is slow or needs a browser, a cluster, an object store or other processes.
check: lint types fast

setup: $(VENV)/.installed

# What developers have includes what the demo needs.
READY := $(if $(wildcard $(VENV)/.installed),$(VENV)/.installed,$(VENV)/.installed-demo)

$(VENV)/.installed: EXTRA := dev
$(VENV)/.installed-demo: EXTRA := serve
$(VENV)/.installed $(VENV)/.installed-demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "prota needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[$(EXTRA)]' -c constraints.txt
	@touch $@

# From nothing to a library of sample clips and three searches: a moment in a film of four scenes; why a
# clip was found; and something that is not there.
demo: $(READY)
	@# A library is its model's: with a newer one it is made anew.
	@test ! $(MODEL) -nt $(DEMO)/library || rm -rf $(DEMO)/library
	$(BIN)/prota samples $(DEMO)/clips
	$(BIN)/prota index $(DEMO)/clips --library $(DEMO)/library --shots
	$(BIN)/prota search "a person with a scarf in a snow storm" --library $(DEMO)/library -k 2
	$(BIN)/prota search "a cup of coffee on a red saucer" --library $(DEMO)/library -k 1 --explain
	$(BIN)/prota search "two men playing football on a field" --library $(DEMO)/library -k 3
	@echo "In a browser: $(BIN)/prota serve --library $(DEMO)/library"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

browser: setup
	@.ci/browser $(BIN)/playwright

pytest: browser
	$(BIN)/pytest -n $(WORKERS) --durations=20

FAST := -n $(WORKERS) -m "not (browser or interpreter or process or ray or s3 or train)"
fast: setup
	$(BIN)/pytest $(FAST)

# Which lines the tests run.
coverage: browser
	$(BIN)/pytest -n $(WORKERS) --cov

# The types, and the fast tests, as on Windows: without the calls that it lacks.
windows: setup
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 prota
	$(BIN)/python -m pytest -p tests.windows $(FAST)

# Once more as CPUs without AVX-512 and without AVX2 round: every library that multiplies matrices is told which it has.
# oneDNN keeps VNNI, because torch asks the CPU itself whether oneDNN multiplies int8 without overflow.
NUMERIC := $(BIN)/pytest -n $(WORKERS) -m "not (browser or process or ray or s3)"
numerics: export ONEDNN_MAX_CPU_ISA := AVX2_VNNI
numerics: setup
	OPENBLAS_CORETYPE=Haswell MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2 $(NUMERIC)
	OPENBLAS_CORETYPE=Nehalem MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default $(NUMERIC)

# The site, in build/site; a dead link or anchor is an error.
docs: setup
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[docs]' -c constraints.txt
	$(BIN)/python docs/generate.py build/docs
	$(BIN)/zensical build --strict --clean

# README's recording and the pictures of the page, from the real ones.
pictures: browser
	$(BIN)/python docs/record.py

bench: setup
	$(BIN)/python benchmarks/score.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(DEMO) build .cache .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
