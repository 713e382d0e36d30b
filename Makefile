# The whole project from a fresh clone: `make up`, `make test`, `make down`.
# Python 3.11 to 3.13 with venv is needed; name another one with PYTHON=python3.12, and what is there is
# installed again for that.
VENV := .venv
BIN := $(VENV)/bin
SERVES := -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))'
# Where nobody names one, an installation that was begun goes on with its own.
PYTHON ?= $(shell for p in $(BIN)/python python3 python3.13 python3.12 python3.11; do \
	$$p $(SERVES) 2>/dev/null && { echo $$p; break; }; done)
VERSION := -c 'import sys; print(sys.version_info)' 2>/dev/null
# Than that of the environment that is there: whichever makes that again, venv leaves it its Python.
IS_OTHER = $(shell test "$$($(PYTHON) $(VERSION))" = "$$($(BIN)/python $(VERSION))" || echo other)
# Asked at each make only where one is named.
OTHER := $(if $(filter-out file,$(origin PYTHON)),$(IS_OTHER))
PIP := $(BIN)/python -m pip --disable-pip-version-check
# In three processes, as each of them waits for servers a good part of its time: on two cores 82 % of
# these are used, with two processes 71. tests/conftest.py says what shares one. Where one is lost, so are
# the tests that it had taken, and with another one in its place the run would wait for them without end.
PROCESSES ?= 3
BESIDE = --numprocesses=$(PROCESSES) --dist=loadfile --max-worker-restart=0
# A test that takes longer hangs, and is named: most are done in seconds, a few in two minutes.
SOON := -o faulthandler_timeout=600

.PHONY: up installed libpython down status test test-quick test-failed test-stack test-by-hand test-monitoring test-compose test-clients \
	test-kubernetes kubernetes-figures \
	compose-figures screenshots dashboard-pictures \
	example-env monitoring check check-ort check-ensemble check-vllm check-tensorrt check-gpu gpu-parcel \
	compare-table compare-int8 compare-hints other-python \
	lint format \
	types types-all types-oldest imports pages docs fuzz soak soak-streams lock reliability reliability-demo models language-models \
	check-processors check-upgrade \
	attack autoscaling bench bench-all bench-tables budgets flames notebooks clean help

help:
	@echo 'make up      install, build the demo models, start the stack, deploy, show curl lines'
	@echo 'make down    stop the stack'
	@echo 'make status  what runs and what is served'
	@echo 'make test    the tests, on real servers'
	@echo 'make test-quick  those of them that need no Triton and no torch, a few minutes'
	@echo 'make test-stack  faults, live changes and traps on a whole stack'
	@echo 'make test-by-hand  notebooks, harness, families: what CI has no time for'
	@echo 'make test-monitoring  19 of the 23 alerts at a real fault, each query of the dashboards; 8 minutes'
	@echo 'make reliability SEED=n   faults and changes at random, for half an hour'
	@echo 'make reliability-demo     its faults with the demo model only, 5 minutes'
	@echo 'make test-compose   the containers, on a real Docker Engine; then make compose-figures'
	@echo 'make test-kubernetes   the chart on a real cluster of one node; then make kubernetes-figures'
	@echo 'make test-clients  other protocols asked by their own client libraries'
	@echo 'make example-env   renew docker/example.env and the chart from the settings'
	@echo 'make monitoring   renew the rules, scrapes and dashboards of compose/monitoring from their tables'
	@echo 'make screenshots   renew the pictures of docs/page.md; a Chromium is needed'
	@echo 'make dashboard-pictures   draw the dashboards of docs/monitoring.md on a loaded stack; a Prometheus is needed'
	@echo 'make check   format, lint, types, that tests import, and that made pages are up to date'
	@echo 'make docs    renew the pages that are made from the code'
	@echo 'make fuzz    100,000 hostile requests; repeat a run with SEED=…'
	@echo 'make models  every task of every family converted and compared: the table of docs/models.md'
	@echo 'make language-models  every family of language models in every precision: docs/models.md'
	@echo 'make check-processors  every precision under the instruction sets that this CPU can imitate'
	@echo 'make check-upgrade FROM=commit  a stack with its data goes from there to here and back'
	@echo 'make attack  what attacks on a stack found, tried again: the table of docs/security.md; 6 minutes'
	@echo 'make soak    ten minutes of load; the worker must not grow'
	@echo 'make soak-streams  ten minutes of streams, of which half leave; nothing may stay behind'
	@echo 'make check-ort  load what convert writes with the ONNX Runtime of the pinned image'
	@echo 'make check-tensorrt  every call of TensorRT by name and signature, without a GPU'
	@echo 'make check-gpu  all that there is to measure on an NVIDIA GPU, by steps; make check-gpu STEP=name'
	@echo 'make gpu-parcel SIZE=50M PYTHON_VERSION=3.12  what a bare machine lacks, in parcels'
	@echo 'make compare-table, compare-int8, compare-hints  engines and int8 on MiniLM'
	@echo 'make bench   the kit beside its peers, 15 minutes; make bench-all: docs/performance.md'
	@echo 'make autoscaling  a computed day of load on Kubernetes, the table of docs/kubernetes.md'
	@echo 'make budgets cold starts, memory, a neighbour, starts of the stack; 10 minutes'
	@echo 'make notebooks  run the notebooks against the running stack and keep their outputs'
	@echo 'make check-ensemble  raw text through the ensemble of a plain Triton'
	@echo 'make check-vllm  the tensors of the vLLM backend through the real tritonserver'
	@echo 'make lock    renew the pins in requirements/'
	@echo 'make clean   remove build products and the stack with its data; $(VENV) stays'

up: libpython $(VENV)/.desk
	$(BIN)/transformer-serving up --demo

# Said before gigabytes are installed; of an environment that is there `up` itself says it.
libpython:
	@$(if $(OTHER),false,test -e $(VENV)/.desk) || ! $(PYTHON) $(SERVES) 2>/dev/null || \
		$(PYTHON) -m transformer_serving.engine.libpython

# By what is installed, also where a lock has changed since: the stack that runs has been started with
# that. Where nothing is, another installation may have started one, whose data stay.
down:
	$(call as_installed,down)

status:
	$(call as_installed,status)

as_installed = $(if $(wildcard $(BIN)/transformer-serving),$(BIN)/transformer-serving $(1),\
	@test ! -e .stack/stack.json || { echo 'there is a stack in .stack, and nothing is installed in $(VENV):' \
		'install again (make up), or stop it with the transformer-serving that started it' >&2; exit 2; }; \
	echo 'no stack in .stack; start one: make up')

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(BESIDE) $(SOON) $(PYTEST)

# At every save: no Triton, no exported model (tests/quick.py says what it leaves out).
test-quick: $(VENV)/.dev
	$(BIN)/python -m pytest $(BESIDE) $(SOON) -p tests.quick $(PYTEST)

# Faults, live changes, traps of the host, every documented answer and printed line on a whole stack,
# and what else is slow: about 20 minutes.
test-stack: $(VENV)/.dev
	$(BIN)/python -m pytest $(BESIDE) -m "long and not by_hand" $(PYTEST)

# The notebooks, the benchmarks' own harness, a deployed model of each family, ClearML's commands in
# one session, alerts and dashboards: about 20 minutes, for which .ci/run has no time.
test-by-hand: $(VENV)/.dev
	$(BIN)/python -m pytest -m by_hand $(PYTEST)

# A real Prometheus on whole stacks: 19 of the 23 alerts at real faults, every query of the dashboards; 8
# minutes. .ci/run has time for tests/monitoring and tests/stack/test_monitoring.py alone.
test-monitoring: $(VENV)/.dev
	$(BIN)/python -m pytest -m "" tests/monitoring tests/stack/test_monitoring.py \
		tests/stack/test_alerts_fire.py tests/stack/test_dashboards.py $(PYTEST)

# What failed in the run before, once more and alone.
test-failed: $(VENV)/.dev
	$(BIN)/python -m pytest -m "" --last-failed --last-failed-no-failures=none $(PYTEST)

reliability: $(VENV)/.dev
	$(BIN)/python -m tests.stack.reliability $(if $(SEED),--seed $(SEED)) $(RELIABILITY)

reliability-demo: $(VENV)/.dev
	$(BIN)/python -m tests.stack.reliability --only demo

# Needs Linux and, to install or start what is missing, root on Debian: a Docker Engine, compose.
# In two processes, as most of it waits for containers to be healthy; more stacks at once make each late.
test-compose: PROCESSES = 2
test-compose: $(VENV)/.dev
	$(BIN)/python -m pytest $(BESIDE) tests/compose --durations=15 $(PYTEST)

# A real API server, scheduler, kubelet and the rest, built once into build/kubernetes, on a Docker
# Engine. Needs what test-compose needs; a quarter of an hour for the build, and as much for the tests.
test-kubernetes: $(VENV)/.dev
	$(BIN)/python -m tests.kubernetes.cluster.binaries
	$(BIN)/python -m pytest tests/kubernetes/cluster --durations=15 $(PYTEST)

# Unmodified clients of other protocols, each in an environment of its own below build/clients, made
# once, against one stack with every task.
test-clients: $(VENV)/.dev
	$(BIN)/python -m pytest tests/clients -m "" --durations=10 $(PYTEST)

# What the last test-compose measured, into docs/compose.md.
compose-figures: $(VENV)/.dev
	$(BIN)/python -m tests.compose.figures

# What the last test-kubernetes measured, into docs/kubernetes.md.
kubernetes-figures: $(VENV)/.dev
	$(BIN)/python -m tests.kubernetes.cluster.figures

example-env: $(VENV)/.desk
	$(BIN)/python -m transformer_serving.desk.compose

# The dashboards are made by Grafana's library, which only developers have.
monitoring: $(VENV)/.dev
	$(BIN)/python -m transformer_serving.desk.monitoring
	$(BIN)/python -m scripts.dashboards

# Pictures of the page at / on a stack of its own: docs/images. Needs Debian's package chromium.
screenshots: $(VENV)/.dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.stack.screenshots

# Seven minutes: a stack of its own is asked for four of them. Needs Debian's package prometheus.
dashboard-pictures: $(VENV)/.dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.stack.dashboard_pictures

# Side by side: mypy takes most of it, on one core.
check: $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target lint types imports pages

# Each file of tests is imported: what is missing is found before anything long begins; and once more by
# the rule of test-quick, which else nothing but a developer's own run would find broken. And the bytecode
# of these and of the kit is kept, whatever an image sets: each process of tests, and each of the thousands
# that they start, reads it, and compiles everything where there is none. Of what failed it writes no
# list: it would be in the place of the one that pages writes beside it.
imports: export PYTHONDONTWRITEBYTECODE =
imports: $(VENV)/.dev
	@mkdir -p build
	$(BIN)/python -m compileall -qq preprocess transformer_serving || true
	for rule in "" "-p tests.quick"; do \
		$(BIN)/python -m pytest -qq --collect-only -p no:cacheprovider $$rule > build/imports.log \
			|| { cat build/imports.log; exit 1; }; \
	done

# What is made from the code must be as it is made now, before anything long begins: seconds.
pages: $(VENV)/.dev
	$(BIN)/python -m pytest -q tests/contract/test_errors.py tests/test_pages.py \
		tests/test_compose_files.py tests/kubernetes/test_page.py tests/kubernetes/test_settings.py \
		tests/kubernetes/test_monitoring.py tests/monitoring/test_alerts.py \
		tests/monitoring/test_dashboards.py tests/monitoring/test_rules.py::test_the_files_are_as_they_are_made_now \
		tests/doctor/test_command.py::test_the_page_has_the_tables_of_the_code

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: types-all types-oldest

types-all: $(VENV)/.dev
	$(BIN)/mypy

types-oldest: $(VENV)/.dev
	$(BIN)/mypy --python-version 3.10 transformer_serving/contract transformer_serving/engine

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev
	$(BIN)/python scripts/errors_page.py
	$(BIN)/python -m scripts.decisions_index
	$(BIN)/python -m scripts.engine_parameters
	$(BIN)/python scripts/chart_values.py
	$(BIN)/python scripts/alerts_table.py

fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.gateway.fuzzing --requests 100000 $(if $(SEED),--seed $(SEED))

models: $(VENV)/.dev
	@$(BIN)/python -m tests.architectures

# A few minutes on two cores.
language-models: $(VENV)/.dev
	@HF_HUB_OFFLINE=1 $(BIN)/python -m tests.continuations

check-processors: $(VENV)/.dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m scripts.check_processors --write

# make check-upgrade FROM=v0.1.0: a stack's data goes from that commit to this one and back.
check-upgrade: $(VENV)/.dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m scripts.check_upgrade $(FROM) --write

# Options: make attack ATTACK=--write, or ATTACK="--short --only raw"
attack: $(VENV)/.dev
	$(BIN)/python -m tests.attack $(ATTACK)

soak: $(VENV)/.dev
	$(BIN)/python -m tests.gateway.soak

# Options: make soak-streams SOAK="--seconds 60"
soak-streams: $(VENV)/.dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.stack.stream_soak $(SOAK)

# In an environment of its own below build/, made once; `make test` leaves it out.
check-ort: $(VENV)/.dev
	CHECK_ORT=build/ort HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/builders/test_image_onnxruntime.py -s

# Bindings of the pinned TensorRT below build/, installed once; needs a C compiler and no GPU.
check-tensorrt: $(VENV)/.dev
	CHECK_TENSORRT=1 $(BIN)/python -m pytest tests/builders/test_check_tensorrt.py $(PYTEST)

# On a machine with an NVIDIA GPU, in steps of at most eight minutes, of which each is stored; without
# one its CPU part. make check-gpu STEP=stack-torch runs one; make check-gpu GPU=--list names them.
check-gpu: $(VENV)/.desk
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks check-gpu $(if $(STEP),--step $(STEP)) $(GPU)

# Wheels and a model for a machine without network: parcels of at most SIZE in build/gpu-parcel.
gpu-parcel: $(VENV)/.desk
	$(BIN)/python -m scripts.gpu_parcel.pack $(if $(SIZE),--size $(SIZE)) \
		$(if $(PYTHON_VERSION),--python-version $(PYTHON_VERSION))

# Options: make bench BENCH="--rounds 9". Of fewer than 5 rounds, or shorter ones, no table is made.
bench: $(VENV)/.dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks bench $(BENCH)

bench-all: $(VENV)/.dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks all $(BENCH)
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks generation

budgets: $(VENV)/.dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks budgets $(BENCH)

flames: $(VENV)/.dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks flames

# Tables of docs/performance.md and docs/convert.md, a few minutes each on an idle machine.
compare-table: $(VENV)/.dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m scripts.compare_table

compare-int8: $(VENV)/.dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m scripts.compare_int8

compare-hints: $(VENV)/.dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m scripts.compare_hints

# Computed, nothing is measured: docs/kubernetes.md.
autoscaling: $(VENV)/.dev
	$(BIN)/python -m benchmarks autoscaling

bench-tables: $(VENV)/.dev
	$(BIN)/python -m benchmarks tables

notebooks: $(VENV)/.dev
	$(BIN)/python notebooks/execute.py

# Likewise: the stub of tritonserver 2.51 reads strings only beside numpy 1.
check-ensemble: $(VENV)/.dev
	CHECK_ENSEMBLE=build/numpy1 $(BIN)/python -m pytest tests/deploy/test_plain_triton.py

check-vllm: $(VENV)/.dev
	CHECK_VLLM=build/numpy1 $(BIN)/python -m pytest tests/preprocess/generation/test_vllm.py \
		tests/engine/test_vllm_streams.py

lock:
	$(PYTHON) scripts/lock.py

clean: down
	rm -rf build .stack

# It holds what the environment was made of: a tree that was copied once more has new times and the same
# contents, and a machine without network can install nothing.
MADE_OF := requirements/desk.lock requirements/carried.lock pyproject.toml
$(VENV)/.desk: $(MADE_OF) $(if $(OTHER),other-python)
	@$(if $(OTHER),false,cat $(MADE_OF) | cmp -s - $@) || $(MAKE) --no-print-directory installed

# What is installed in place pip does not compile; where PYTHONDONTWRITEBYTECODE is set, each start would.
# Where root has, in a container that mounts the checkout, its user cannot: it is installed all the same.
installed:
	@test -n "$(PYTHON)" && $(PYTHON) $(SERVES) 2>/dev/null || { \
		echo 'error: $(if $(PYTHON),$(PYTHON) is,there is) no Python 3.11 to 3.13 with venv; on Debian and' \
		'Ubuntu: apt-get install python3-venv libpython3.11 (of 3.12: libpython3.12), or name one:' \
		'make up PYTHON=python3.12' >&2; exit 2; }
	$(PYTHON) -m venv $(VENV) $(if $(IS_OTHER),--clear)
	$(BIN)/python scripts/install.py requirements/desk.lock --alone requirements/carried.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m compileall -qq preprocess transformer_serving || true
	@cat $(MADE_OF) > $(VENV)/.desk

$(VENV)/.dev: $(VENV)/.desk requirements/dev.lock
	$(BIN)/python scripts/install.py requirements/dev.lock
	@touch $@
