# make demo: set up, then the main job on a bundled example.   make test: set up, then the whole test suite.
VENV ?= .venv
BIN := $(VENV)/bin
OUT := out

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint proofs notebooks bench-simulate bench-segments bench-local bench-program lock clean

help:
	@echo "make demo            the main job on a bundled example, about a minute"
	@echo "make test            lint, types and the whole test suite"
	@echo "make proofs          installs Coq if it is missing and checks every machine proof"
	@echo "make notebooks       executes the notebooks in place"
	@echo "make bench-simulate  simulated time over bound, table in docs/"
	@echo "make bench-segments  unequal segments against equal ones, table in docs/"
	@echo "make bench-local     achieved time over bound on this machine, table in docs/"
	@echo "make bench-program   size and time of the exact program, table in docs/"
	@echo "make lock            resolve the dependencies anew into requirements.lock"

setup: $(VENV)/ready

$(VENV)/ready: requirements.lock pyproject.toml tools/setup.sh
	tools/setup.sh $(VENV)
	touch $@

demo: $(VENV)/ready
	mkdir -p $(OUT)
	$(BIN)/optcc run examples/h100-8x400g.nccl-topo.xml --servers 4 \
	  --fail server1/mlx5_0 --fail server1/mlx5_1 --fail server1/mlx5_2 --fail server1/mlx5_3 \
	  --size 64MiB --repeat 5 --timeline $(OUT)/timeline.svg

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest

proofs:
	$(MAKE) -C proofs

notebooks: $(VENV)/ready
	$(BIN)/python tools/notebooks.py

bench-simulate: $(VENV)/ready
	$(BIN)/python benchmarks/bench_simulate.py

bench-program: $(VENV)/ready
	$(BIN)/python benchmarks/bench_program.py

bench-segments: $(VENV)/ready
	$(BIN)/python benchmarks/bench_segments.py

bench-local: $(VENV)/ready
	$(BIN)/python benchmarks/bench_local.py

lock:
	uv pip compile --universal --generate-hashes --python-version 3.11 --extra dev --no-emit-index-url -q \
	  --custom-compile-command "make lock" -o requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) $(OUT)
