# The whole set-up is one of these; `make` alone lists them. A second call finds .venv ready and starts at once.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install demo test check bench docs clean install-demo

help:  ## This list
	@sed -n 's/^\([a-z]*\):.*  ## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: install-demo  ## Install what the demo needs, then write a text with two models
	$(BIN)/unisono run --preset demo "Once upon a time" --max-tokens 48 --show-votes

test: install  ## Install what the tests need, then run all of them; ARGS="-m 'not models'" goes to pytest
	$(BIN)/python -m pytest $(ARGS)

check: install  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install-demo  ## Tokens a second of the two demo models, alone and together
	$(BIN)/unisono bench --preset demo $(ARGS)

docs: install  ## Write the README's table of options anew, from the code
	$(BIN)/python tools/options.py

install:  ## All of it into .venv: the demo, the tests, the checkers
	$(call set_up,dev)

install-demo:
	$(call set_up,demo)

clean:  ## Remove .venv and whatever the tools left; pip's cache keeps the compiled llama.cpp
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# .venv's own python where there is one, else $(PYTHON), which has to be recent enough.
define set_up
@python=$(BIN)/python; $$python -c '' 2>/dev/null || python='$(PYTHON)'; \
$$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	echo "Unisono needs Python 3.10 or newer, and '$$python' is none: make $(or $(firstword $(MAKECMDGOALS)),$@) PYTHON=python3.12, say." >&2; exit 1; }; \
$$python tools/install.py $(1)
endef
