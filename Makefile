# make demo: set up what optcc needs, then the main job on an example.   make test: set up the rest, then the test suite.
VENV ?= .venv
BIN := $(VENV)/bin
OUT := out

.DEFAULT_GOAL := help
.PHONY: help setup native wheel programs demo test test-long test-bare test-verbs lint proofs notebook notebooks ns3 torch reproduce failover-verbs docs docs-serve docs-commands docs-pictures rooms lock clean

help:
	@echo "make demo            what optcc needs, then the main job on a bundled example: 2 minutes of processor time, 550 MB"
	@echo "make test            lint, types and the test suite, with packages of their own;"
	@echo "                     PROGRAMS= names what is installed beside them: g++ perftest ucx coq ns3 torch prometheus"
	@echo "make test-long       the same, with the tests that take long, and an eighth of the random cases in place of a twentieth;"
	@echo "                     WHOLE=1 make test-long: with all of them, for a night"
	@echo "make native          the C code alone, after a change to it"
	@echo "make wheel           wheels for x86-64 and Arm, glibc 2.28 and newer, into dist/"
	@echo "make test-bare       demo and test on a bare Debian 12, in a root of its own; needs root and debootstrap"
	@echo "make test-verbs      the tests on RDMA NICs: this machine's, or soft ones in a virtual machine that it builds;"
	@echo "                     WHOLE=1 make test-verbs: with more random faults, and training"
	@echo "make proofs          installs Coq if it is missing and checks every machine proof"
	@echo "make notebook        opens the notebooks in JupyterLab, which it installs where it is missing; LAB= are options of its"
	@echo "make notebooks       executes the notebooks in place"
	@echo "make ns3             installs ns-3 and g++ where missing, for the packet-level tests"
	@echo "make torch           installs torch where it is missing (TORCH_INDEX=URL: from there), for optcc.pytorch and its tests"
	@echo "make reproduce       the whole evaluation into docs/, a quarter of an hour of processor time"
	@echo "make bench-torch     DDP steps with a slow link against native DDP (after make torch), table in docs/"
	@echo "make bench-chunk     what a piece of a transfer costs the processor beside its bytes, table in docs/"
	@echo "make bench-tcp       the native engine over TCP against one stream of iperf3, between network namespaces; needs root, table in docs/"
	@echo "make bench-lab       achieved time over bound over queue pairs, in the lab's virtual time, table in docs/"
	@echo "make bench-diagnosis  does optcc diagnose name the right NICs? table in docs/"
	@echo "make bench-failure-planning  from a NIC's failure to the plan, beside planning from scratch, table in docs/"
	@echo "make bench-serve     optcc serve under load on loopback, table in docs/"
	@echo "make bench-communicator  the communicator's latency against Gloo, table in docs/ (after make torch)"
	@echo "make bench-torch-backend  the same of torch's backend, table in docs/ (after make torch)"
	@echo "make bench-mpi       the communicator's calls beside OpenMPI's and MPICH's (its first lines say how these get here), table in docs/"
	@echo "make bench-gpu-communicator  the communicator on GPUs' arrays beside NCCL (2 GPUs, torch), table in docs/"
	@echo "make bench-fabric    what played NICs keep of their rate, and what goes over them (perftest; with a GPU, more), page in docs/"
	@echo "make bench-nccl-played  NCCL over played NICs that are slow or break, its own and our transport (GPUs, torch), tables in docs/"
	@echo "make bench-nccl      NCCL's ring and tree beside our ncclNet and CollNet, on emulated nodes (root, GPUs, torch), page in docs/"
	@echo "make bench-regret    the planner against families and depths tried by hand, a line for each cluster"
	@echo "make bench-simulator speed and memory of the simulator, table in docs/"
	@echo "make bench-failover  1000 faults at random moments over the local transport, tables in docs/"
	@echo "make failover-verbs  the same over queue pairs in the lab, 200 faults, table in docs/failover-verbs.md"
	@echo "make docs            the site into out/site, any warning an error; make docs-serve shows it at http://localhost:8000"
	@echo "make docs-commands   what the commands of tutorial and how-to pages print, into these pages"
	@echo "make rooms           who imports whom: the lines in each room's __init__, the picture of the house"
	@echo "make docs-pictures   the pictures of the site's first page, from simulations, and of the dashboard"
	@echo "make lock            resolve the dependencies anew into requirements.lock and requirements-dev.lock (needs uv)"

setup: $(VENV)/ready

# The C code alone, after a change to it: a second.
native:
	python3 native/build.py optcc/liboptcc.so
	python3 native/build.py optcc/libnccl-net-optcc.so

wheel: $(VENV)/ready
	tools/wheel.sh $(VENV)

# What optcc itself needs.
NATIVE := setup.py $(wildcard native/*) $(wildcard native/nccl/*) runtime/devices/kernels/fold.cu
$(VENV)/ready: requirements.lock pyproject.toml tools/setup.sh $(NATIVE)
	tools/setup.sh $(VENV) $<
	touch $@

# That, and what tests, checks, the site and the scripts of benchmarks need.
$(VENV)/ready-dev: requirements-dev.lock pyproject.toml tools/setup.sh $(NATIVE)
	tools/setup.sh $(VENV) $<
	touch $(VENV)/ready $@

# Compiled code is kept, even for who has set otherwise: processes start by the dozen, in tests by the hundred.
demo test test-long: export PYTHONDONTWRITEBYTECODE :=
demo: $(VENV)/ready
	mkdir -p $(OUT)
	$(BIN)/optcc run examples/h100-8x400g.nccl-topo.xml --servers 4 \
	  --fail server1/mlx5_0 --fail server1/mlx5_1 --fail server1/mlx5_2 --fail server1/mlx5_3 \
	  --size 64MiB --repeat 5 --timeline $(OUT)/timeline.svg

lint: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What tests need beside Python packages; what cannot be installed is named, and its tests are skipped.
PROGRAMS ?= g++ perftest ucx ip coq ns3 torch prometheus
programs: $(VENV)/ready-dev
	tools/programs.sh --or-say $(VENV) $(PROGRAMS)

# A file at a time, since what a file sets up is dear; three files on two cores, since much of their time is waiting for
# processes that are stopped, silent or start. REQUIRE="coq torch": fail where these are missing; SEED=7: the random cases
# of this seed.
WORKERS ?= $(shell expr $$(nproc) + $$(nproc) / 2)
PYTEST = tools/tests.sh $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(addprefix --require=,$(REQUIRE)) $(addprefix --hypothesis-seed=,$(SEED))
test test-long: programs lint
	$(PYTEST) $(if $(filter test-long,$@),$(if $(WHOLE),--whole,--long))

test-bare:
	tools/bare_root.sh

# Needs no environment of Python packages: the lab brings its own.
test-verbs:
	lab/test.sh

proofs:
	$(MAKE) -C proofs

# For people only, so not among the locked packages. LAB="--no-browser --port 8888": on a machine without a screen.
notebook: $(VENV)/ready-dev
	$(BIN)/pip install --disable-pip-version-check -q --no-build-isolation -e '.[notebooks]'
	$(BIN)/python -m jupyterlab $(LAB) notebooks

notebooks: $(VENV)/ready-dev
	$(BIN)/python tools/notebooks.py

ns3: $(VENV)/ready
	tools/programs.sh $(VENV) g++ ns3

torch: $(VENV)/ready
	tools/programs.sh $(VENV) torch

reproduce: $(VENV)/ready
	$(BIN)/optcc reproduce -o docs/evaluation.md

failover-verbs: $(VENV)/ready-dev
	lab/run.sh --nics 12 --memory 2G --limit 3600 --results $(OUT)/lab -- python3 -m lab.failover
	cp $(OUT)/lab/failover.md docs/failover-verbs.md
	$(BIN)/python -m benchmarks.pages docs/failover-verbs.md

docs: $(VENV)/ready-dev
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html -d $(OUT)/doctrees -c docs . $(OUT)/site
	@echo "open $(OUT)/site/index.html"

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(OUT)/site 8000

docs-commands: $(VENV)/ready-dev
	$(BIN)/python tools/docs_commands.py --update docs/tutorial.md docs/howto-*.md

docs-pictures: $(VENV)/ready-dev
	$(BIN)/python tools/docs_pictures.py
	$(BIN)/python -m tools.dashboard_picture

rooms: $(VENV)/ready-dev
	$(BIN)/python tools/rooms.py

# Each writes docs/bench-NAME.md, and the rows of its long tables into docs/data.
bench-%: $(VENV)/ready-dev
	$(BIN)/python -m benchmarks.bench_$(subst -,_,$*)

# The small lock is cut out of the large one, so that both name the same versions.
LOCK = uv pip compile --universal --generate-hashes --python-version 3.11 --extra build --no-emit-index-url -q \
  --custom-compile-command "make lock"
lock: requirements-ns3.lock
	$(LOCK) --extra dev -o requirements-dev.lock pyproject.toml
	$(LOCK) -c requirements-dev.lock -o requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) $(OUT) build optcc/liboptcc.so

requirements-ns3.lock: pyproject.toml
	echo "$$(sed -n 's/^ns3 = \["\(.*\)"\].*/\1/p' pyproject.toml)" | uv pip compile --no-deps --generate-hashes --universal \
	  --python-version 3.11 --no-emit-index-url -q --custom-compile-command "make lock" -o $@ -
