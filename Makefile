# The newest supported interpreter that runs: pyenv has a command for each of its versions, and only the chosen ones run.
PYTHON ?= $(or $(shell for minor in 13 12 11; do python3.$$minor -c pass 2>/dev/null && echo python3.$$minor && break; done),python3)
UV_VERSION := 0.13.8
BIN := .venv/bin
STARTED := $(shell date +%s)
# A line with the seconds since `make` began.
SAY = printf '[%4d s] %s\n' $$(($$(date +%s) - $(STARTED)))
# Images of containers often set it. Then each of the hundreds of processes that tests start would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: env run platform test nightly slow-test lint lock kill-test company-night simulate fuzz soak sequences sparks audit-oracle interop-matrix interop-s3a interop-stores interop-hdfs interop-kafka pictures benchmarks docs docs-serve

env: .venv/.made

# The stamp depends on what is pinned, so a changed lock renews the environment.
.venv/.made: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || \
		{ echo "Statekeeper needs Python 3.11, 3.12 or 3.13: https://www.python.org/downloads/"; exit 1; }
	@$(SAY) "an environment for $$($(PYTHON) --version) in .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet "uv==$(UV_VERSION)"
	@$(SAY) "$$(grep -c == requirements.lock) packages, among them Spark with 400 MB; a minute, or some with a slow network"
	@# First from the cache alone: uv builds Spark again, for a minute, if the index does not say how long a file is valid.
	@$(BIN)/uv pip install --quiet --offline --python $(BIN)/python -r requirements.lock 2>/dev/null || \
		$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@$(SAY) "the environment is complete"
	@touch $@

# One lock for all supported versions and systems.
lock:
	$(BIN)/uv pip compile --quiet --universal --all-extras --python-version 3.11 --no-header --no-annotate pyproject.toml -o requirements.lock
	for minor in $(SPARKS); do $(BIN)/uv pip compile --quiet --python-version 3.11 --no-header --no-annotate tests/interop/sparks/$$minor.in -o tests/interop/sparks/$$minor.txt; done

run: env
	@$(BIN)/python -m statekeeper.pipelines.flights.job --started $(STARTED) $(ARGS)

# Dagster for the roots in one's own statekeeper.toml: make platform ARGS="--config statekeeper.toml"
platform: env
	@$(BIN)/python -m statekeeper.resources.launcher.platform $(ARGS)

# Makes an environment, but never renews one: a second checkout that shares it would become what the first one imports.
lint: $(if $(wildcard $(BIN)/lint-imports),,env)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Several test processes at once would fetch the same files.
.venv/.jars: .venv/.made pipelines/startup/session.py tests/support/quick_spark.py
	@$(BIN)/python -m tests.support.quick_spark > $@.log 2>&1 || { cat $@.log; exit 1; }
	@touch $@

# The tests wait for thousands of small files to be on disk. With 8 GB free in memory, their temporary folder is there.
# Tests run programs as a second user, so it is open to all users, as /tmp is.
MEMORY := $(shell grep -qs ' /dev/shm [^ ]* [^ ]*noexec' /proc/mounts || \
	test "$$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" -gt 8000000 2>/dev/null && echo /dev/shm)
# Most tests wait for a process or a server, so one worker more than cores. More would only repeat the fixtures of modules.
WORKERS := $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
IN_FOLDER = folder=$$(mktemp -d "$${TMPDIR:-$(or $(MEMORY),/tmp)}/statekeeper-XXXXXX") && chmod 1777 "$$folder" && \
	trap 'rm -rf "$$folder"' EXIT && trap 'exit 130' INT TERM && TMPDIR="$$folder"
# A useful set in less than five minutes; SET=all is what CI runs, and tests in ARGS are a set of their own.
SET ?= quick
QUICK := tests/base tests/checkpoint tests/contents tests/format tests/root tests/cli \
	tests/maintenance/verbs tests/maintenance/upkeep/audit tests/maintenance/upkeep/retention tests/pipelines/operator tests/pipelines/jobs/test_readme.py \
	tests/interop/test_spark_loads_our_snapshots.py
CHOSEN = $(if $(or $(filter-out quick,$(SET)),$(filter tests/%,$(ARGS))),,$(QUICK))
test: env .venv/.jars
	@$(IN_FOLDER) $(BIN)/python -m pytest -m "not slow" --numprocesses $(WORKERS) --dist loadgroup $(CHOSEN) $(ARGS)
	@$(if $(CHOSEN),echo "That was the quick set. All tests of CI: make test SET=all; all others: make nightly")

# All that `make test` leaves out, in HOURS, as one table; a run that was stopped continues. Some parts: ARGS="--only fuzz soak"
HOURS ?= 8
nightly: env .venv/.jars
	@$(IN_FOLDER) $(BIN)/python -m tests.nightly --hours $(HOURS) $(ARGS)

# What takes minutes each: large partitions, each request on S3, processes killed in turn, every operator of Spark's.
slow-test: env
	$(BIN)/python -m pytest -m slow $(ARGS)

# Minutes of SIGKILL: make kill-test KILLS=40 SEED=7; the whole year beside maintenance: ARGS="--all --maintained"; one
# job and one object per batch: ARGS="--log batch"
KILLS ?= 40
SEED ?= 7
kill-test: env
	$(BIN)/python -m tests.faults.kill_test --kills $(KILLS) --seed $(SEED) $(ARGS)

# Minutes of a night in a company: fifty checkpoints, ten damages, and SIGKILL to runs, daemon, code server and resident process;
# one of both ways to maintain them: ARGS="--through dagster", ARGS="--through watch"
MINUTES ?= 30
company-night: env
	$(BIN)/python -m tests.faults.company_night --minutes $(MINUTES) --seed $(SEED) $(ARGS)

# Schedules of a query and its maintainers in virtual time, a second or two each; ARGS="--log batch": the query writes
# batch logs. One again, turn by turn:
# python -m tests.faults.simulate --seed 17 --trace
FIRST ?= 0
simulate: env
	$(BIN)/python -m tests.faults.simulate --seeds $(or $(SEEDS),1000) --first $(FIRST) $(ARGS)

# Damaged checkpoints under every verb, a second or two each; a run that was stopped continues. One case again:
# python -m tests.faults.fuzz --seed 1 --case 17
CASES ?= 2000
FUZZ_SEED ?= 1
fuzz: env
	$(BIN)/python -m tests.faults.fuzz --cases $(CASES) --seed $(FUZZ_SEED) $(ARGS)

# Half an hour: Spark's own queries run, and are started again, while snapshots are made and files deleted under them
soak: env
	$(BIN)/python -m tests.interop.soak $(ARGS)

# Half an hour: sequences of verbs, batches of Spark, kills and damages, with Spark and a twin as the oracle after each step.
# A failed sequence is shrunk. One again, step by step: python -m tests.interop.sequences --seed 17
sequences: env .venv/.jars
	@$(BIN)/python -m tests.interop.sequences --seed $(FIRST) --count $(or $(SEEDS),100) $(ARGS)

# An environment for the newest patch of each Spark; the project's own is the newest that Delta goes with
SPARKS := 3.5 4.0 4.1 4.2 4.3
# The older Sparks do not run on a newer Python, and their files are locked for this one.
SPARKS_PYTHON ?= python3.11
var/sparks/%/.made: tests/interop/sparks/%.txt .venv/.made
	@test -x $(@D)/bin/python || $(SPARKS_PYTHON) -m venv --without-pip $(@D)
	@$(BIN)/uv pip install --quiet --python $(@D)/bin/python -r $<
	@touch $@

sparks: $(SPARKS:%=var/sparks/%/.made)

# Half an hour: damaged checkpoints, the deep audit's word against Spark's own start and reader; it goes on where it was
CASES ?= 500
audit-oracle: env
	@$(BIN)/python -m tests.interop.oracle --cases $(CASES) $(ARGS)

# Every operator of Spark's, in both structures, on every Spark from 3.5 on, beside a twin that nobody touched
interop-matrix: env sparks
	$(BIN)/python -m tests.interop.sparks $(ARGS)

# A quarter of an hour: Spark keeps its checkpoints in a bucket, and goes on there after each verb
interop-s3a: env .venv/.jars
	$(BIN)/python -m pytest tests/interop/test_s3a.py -m "slow or not slow" $(ARGS)

# Minutes: roots on Azure, on Google's cloud and on HDFS, on servers that speak their protocols. It needs npm and Go
TESTBENCH := https://github.com/googleapis/storage-testbench/archive/e8c85072463f1f8378d850db457df598fdcb17a7.zip
var/stores/.made: .venv/.made
	@command -v npm >/dev/null && command -v go >/dev/null || { echo "the servers need npm and Go: nodejs.org, go.dev"; exit 1; }
	@npm install --silent --no-audit --no-fund --prefix var/stores azurite@3.37.0
	@GOBIN="$(CURDIR)/var/stores/bin" go install github.com/fsouza/fake-gcs-server@v1.56.1
	@$(PYTHON) -m venv var/stores/testbench
	@$(BIN)/uv pip install --quiet --python var/stores/testbench/bin/python "$(TESTBENCH)" || \
		echo "without Google's testbench, which is only on github.com, its tests are skipped"
	@touch $@

var/stores/hadoop-client-minicluster.jar: .venv/.made
	@mkdir -p $(@D)
	@$(BIN)/python -m tests.support.hdfs_server 2> $@.log || { cat $@.log; exit 1; }
	@touch $@

interop-stores: env var/stores/.made var/stores/hadoop-client-minicluster.jar
	$(BIN)/python -m pytest tests/storage -m "slow or not slow" $(ARGS)

# Minutes: an HDFS of its own, on which answers are lost, namenodes take turns, and Spark keeps its checkpoints
interop-hdfs: env .venv/.jars var/stores/hadoop-client-minicluster.jar
	$(BIN)/python -m pytest tests/storage tests/interop/test_hdfs.py -k hdfs -m "slow or not slow" $(ARGS)

# Minutes: a rewind reports the offsets that a topic has lost, and Spark stops on the same ones
var/stores/kafka-source: .venv/.made
	@$(BIN)/python -m tests.support.kafka_server 2> .venv/kafka.log || { cat .venv/kafka.log; exit 1; }

interop-kafka: env var/stores/kafka-source
	$(BIN)/python -m pytest tests/interop/test_sources_after_rewinds.py -m "slow or not slow" $(ARGS)

# Minutes: the pictures in docs/pictures: of the terminal, and of the UI by a headless Chromium
pictures: env
	$(BIN)/python -m tests.docs.take_terminal
	$(BIN)/python -m tests.assets.take_pictures $(ARGS)

benchmarks: env
	$(BIN)/python -m benchmarks $(ARGS)

# The docs site, below var/site; a broken link or an undocumented page is an error. It needs no network.
docs: env
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --clean
	@echo "open var/site/index.html"

# The same while you write: http://127.0.0.1:8000
docs-serve: env
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --dev-addr 127.0.0.1:8000
