# Two commands for a fresh clone: `make demo` and `make test`. Both set up .venv first if it is not there.

PYTHON ?= python3
ENGINE ?= mpi
VENV := .venv
BIN := $(VENV)/bin
QUIET := TF_CPP_MIN_LOG_LEVEL=3
# What Open MPI wants to know in a container: root may run it, and where the wheel keeps its files.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OPAL_PREFIX := $(abspath $(VENV))
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: branches cluster demo docs durations test test-fast test-long test-cluster test-gpu test-all test-keras on-keras check browser bench setup wheel clean

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[horovod,data,ray,test,dev,docs]"
	$(BIN)/keras-par install-horovod --engine $(ENGINE)
	touch $@

demo: setup
	mkdir -p build
	$(QUIET) keras-par run -np 2 examples/mnist.py --save build/demo.weights.h5
	@echo "The same in one process, to compare:"
	$(QUIET) python examples/mnist.py --batch-size 64 --compare build/demo.weights.h5

check: setup
	ruff check .
	ruff format --check .
	mypy

# One file for any Python, which needs neither Horovod nor a compiler: pip install dist/keras_par-*.whl
DIST ?= dist
wheel:
	rm -f $(DIST)/keras_par-*.whl
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(DIST) .
	@ls $(DIST)/keras_par-*.whl

# The site, which loads nothing from elsewhere. A broken link is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict
	@echo "Read it: $(VENV)/bin/python -m http.server --directory build/site"

# The tests look at the report's page in a headless browser; installs Debian's if there is none.
APT := apt-get install -y -qq --no-install-recommends chromium chromium-driver
browser:
	@if command -v chromedriver && { command -v chromium || command -v google-chrome; }; then exit 0; \
	elif command -v apt-get && [ "$$(id -u)" = 0 ]; then apt-get update -qq && $(APT) && exit 0; \
	elif command -v apt-get && sudo -n true; then sudo -n apt-get update -qq && sudo -n $(APT) && exit 0; \
	fi > /dev/null 2>&1; \
	echo "The tests of the report need a browser: install Chromium and ChromeDriver (Debian: chromium chromium-driver)."

# Two processes share the tests: one runs those of pools of several ranks, the other what starts jobs, and the rest.
WORKERS ?= 2
PYTEST := python -m pytest --numprocesses $(WORKERS)
# Trainings in plain Keras that the tests may last as long as: some 640 at the last look, 940 beside four busy processes.
BUDGET ?= 1300
test: check browser
	$(PYTEST) --budget $(BUDGET) -m "not long and not slow and not cluster and not gpu"

# While developing: what needs neither ranks nor jobs, and a few trainings on ranks.
test-fast: setup
	$(PYTEST) -m "fast and not long and not slow"

# Whole jobs and trainings that would make `make test` twice as long; continuous integration runs them, too.
test-long: setup browser
	$(PYTEST) -m "long and not slow and not cluster and not gpu"

# Hosts are network namespaces with OpenSSH servers, or a SLURM, of their own, which root makes.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo --preserve-env env PATH="$$PATH")
CLUSTER := apt-get install -y -qq --no-install-recommends iproute2 openssh-server openssh-client slurm-wlm munge
CLUSTER_TESTS ?= cluster and not slow
# Each file stays in one process, so that those of many minutes begin first.
CLUSTER_LONGEST := $(addprefix tests/, hosts/test_lost_hosts.py test_ray.py $(addprefix hosts/test_, \
	ssh_faults.py slurm_time.py ssh.py partners.py slurm.py) test_tutorials.py hosts/test_pods.py hosts/test_ray_hosts.py)
# No other file is read: five processes would import TensorFlow and all tests first.
CLUSTER_FILES = $(shell grep --recursive --files-with-matches --include="test_*.py" mark.cluster tests)
CLUSTER_ORDER = --dist loadfile --no-loadscope-reorder $(CLUSTER_LONGEST) $(filter-out $(CLUSTER_LONGEST),$(CLUSTER_FILES))
cluster:
	@test -x /usr/sbin/sshd -a -x /usr/sbin/slurmctld -a -x /usr/sbin/munged || { $(SUDO) apt-get update -qq && $(SUDO) $(CLUSTER); } > /dev/null 2>&1 || \
	echo "The tests of clusters need root, and Debian's openssh-server, iproute2, slurm-wlm and munge."
test-cluster: setup cluster
	$(SUDO) $(BIN)/python -m pytest --numprocesses 5 -m "$(CLUSTER_TESTS)" $(CLUSTER_ORDER)

# What one GPU can show: fails without one. TensorFlow needs NVIDIA's libraries: pip install "tensorflow[and-cuda]".
test-gpu: setup
	python -m pytest -m gpu

# Where the time of all of these goes.
DURATIONS := $(abspath build/durations.jsonl)
durations: setup
	mkdir -p build && rm -f $(DURATIONS)
	KERAS_PAR_TEST_DURATIONS=$(DURATIONS) $(MAKE) test test-long test-cluster
	python -m tests.durations $(DURATIONS)

# Which branches of keras_par each of them takes, on all ranks, for `tests/sweeps.py`. Takes half as long again.
BRANCHES := $(abspath build/branches)
branches: setup
	rm -rf $(BRANCHES) $(DURATIONS) && mkdir -p $(BRANCHES)
	-KERAS_PAR_TEST_BRANCHES=$(BRANCHES) COVERAGE_PROCESS_START=$(abspath tests/branches.ini) \
	KERAS_PAR_TEST_DURATIONS=$(DURATIONS) $(MAKE) --keep-going test test-long BUDGET=10000
	python -m tests.branches $(BRANCHES) $(DURATIONS)

# Exactness, inputs, checkpoints, ZeRO, meshes, loops and callbacks, with ranks that TensorFlow connects.
ON_ANY_ENGINE := $(addprefix tests/test_, one_process.py exactness.py communicators.py inputs.py zero.py model_parallel.py \
	sharded_checkpoint.py resume.py small_batches.py steps.py metrics.py random.py reduce_by.py \
	collectives.py by_hand.py ops.py tables.py parted.py recompute.py kept.py model_files.py callback_memory.py callbacks.py \
	stock_callbacks.py)
test-all: check browser
	$(PYTEST) -m "not cluster and not gpu"
	KERAS_PAR_TEST_RANKS=tensorflow $(PYTEST) -m "not slow and not cluster and not gpu" $(ON_ANY_ENGINE)
	$(MAKE) test-cluster CLUSTER_TESTS=cluster
	$(MAKE) test-keras KERAS=3.14.0
	$(MAKE) test-keras KERAS=nightly

# Exactness, inputs and callbacks on another Keras, in an environment of its own: make test-keras KERAS=3.14.0, or nightly.
KERAS ?= 3.14.0
OTHER := build/keras-$(KERAS)
WANTED := $(if $(filter nightly,$(KERAS)),keras-nightly,keras==$(KERAS))
test-keras:
	mkdir -p build
	$(MAKE) setup VENV=$(OTHER)
	$(OTHER)/bin/python -m pip uninstall --quiet --yes keras keras-nightly
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check $(WANTED)
	$(MAKE) on-keras VENV=$(OTHER)

on-keras:
	python -c "import keras; print('Keras', keras.__version__)"
	$(PYTEST) -m "not slow and not cluster" tests/test_one_process.py tests/test_exactness.py tests/test_inputs.py tests/test_*callbacks.py

bench: setup
	mkdir -p build
	python -m benchmarks throughput --json build/throughput.json --plot build/throughput.html

clean:
	rm -rf .venv build data
