# Every target builds .venv first when it is missing or older than what it is built from,
# so a fresh clone needs one command, whichever it is.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Tests start many processes. If this variable were set, each process would compile every module it imports.
unexport PYTHONDONTWRITEBYTECODE

EXTRA ?= 1

# The option for each variable, as in raftlab/harness/options.py. RUN lists the variables that change a run.
# quoted puts a path in quotes, because it may contain spaces.
quoted = '$(subst ','\'',$(1))'
OPTION_RAFT     = --raft $(call quoted,$(RAFT))
OPTION_KV       = --kv $(call quoted,$(KV))
OPTION_SEED     = --seed $(SEED)
OPTION_ISOLATED = --isolated
OPTION_RACE     = --race
OPTION_RUNS     = --runs $(RUNS)
OPTION_JOBS     = $(if $(filter-out auto,$(JOBS)),--jobs $(JOBS))
OPTION_FOR      = --for $(FOR)
OPTION_OUT      = --out $(call quoted,$(OUT))
OPTION_TIMELINE = --timeline
OPTION_PEERS    = --peers $(PEERS)
OPTION_PORT     = --port $(PORT)
RUN             = RAFT KV SEED ISOLATED RACE
RUN_OF_PEER     = $(filter-out KV,$(RUN))
options         = $(foreach each,$(1),$(if $($(each)),$(OPTION_$(each))))

# The requested parts in order, and their files: MIT's tests and, with EXTRA=1, the additional tests.
PARTS := test-2a test-2b test-2c test-2d test-3a test-3b
ASKED  = $(patsubst test-%,%,$(sort $(filter $(PARTS),$(MAKECMDGOALS))))
part   = tests/test_$(1).py $(if $(filter 1,$(EXTRA)),$(wildcard tests/test_$(1)_extra.py))

# A worker needs a second to start, and a part takes little longer, so one process is faster for a few runs.
FEW     := 1 2 3 4 5 6 7 8 9
WORKERS  = $(or $(JOBS),$(if $(or $(REALTIME),$(filter-out $(FEW),$(RUNS))),auto,1))

pytest = $(BIN)/python -m pytest -q -n $(if $(filter 1,$(1)),0,$(1)) $(call options,$(RUN) RUNS) \
         $(if $(FIRST),-x) $(if $(TEST),-k $(call quoted,$(TEST))) $(if $(REALTIME),--realtime)

.DEFAULT_GOAL := help
.PHONY: help test parts $(PARTS) next watch race stress replay shrink timeline page live scenario fuzz hunt cluster lint clean

# A line "#@ NAME" begins a group in the list that help prints.
help: ## show this list
	@awk -F ':.*## ' '/^#@ / { group = "\n" substr($$0, 4) "\n" } \
	  /^[a-z0-9-]+:.*## / { printf "%s%-13s %s\n", group, $$1, $$2; group = "" }' $(MAKEFILE_LIST)
	@echo
	@echo "Options, for example: make test-2b SEED=7 RAFT=path/to/raft.py"
	@echo "  SEED=n      the first seed (default: a new one; failure reports show it)"
	@echo "  RUNS=n      repeat over n seeds"
	@echo "  FIRST=1     stop at the first failure"
	@echo "  TEST=name   run only this test"
	@echo "  RAFT=path   test another raft.py"
	@echo "  KV=path     test another server.py, with the client.py beside it"
	@echo "  RACE=1      preempt threads at any line and report data races"
	@echo "  ISOLATED=1  run each peer sandboxed, in its own process"
	@echo "  REALTIME=1  use real threads and the real clock"
	@echo "  EXTRA=0     run only MIT's tests"
	@echo "  JOBS=n      use n worker processes"
	@echo "  PEERS=n     how many peers a live run has"
	@echo "  PORT=n      the port of the live page"
	@echo "  OUT=path    where to write results"

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "raftlab needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	@echo "Setting up $(VENV) (once) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

#@ Run tests

# One worker runs all tests of a file. Files start in the order of collection, not by their number of tests.
# There is one more worker than cores, because some tests only wait for a process.
CORES = $(or $(shell getconf _NPROCESSORS_ONLN 2>/dev/null),1)
test: $(READY) ## run all tests
	$(call pytest,$(or $(JOBS),$(shell expr $(CORES) + 1))) $(if $(filter 1,$(JOBS)),,--dist loadfile --no-loadscope-reorder) tests

test-2a: parts ## test leader election
test-2b: parts ## test log replication
test-2c: parts ## test persistence
test-2d: parts ## test snapshots
test-3a: parts ## test the key/value service
test-3b: parts ## test the service with snapshots
$(PARTS):
	@:

# One pytest runs all requested parts, so every part runs even if an earlier one fails, and there is one summary.
# The classic style prints no line with only a percentage between two tests.
parts: $(READY)
	@$(call pytest,$(WORKERS)) -o console_output_style=classic $(foreach asked,$(ASKED),$(call part,$(asked)))

next: $(READY) ## show the next milestone, and what to build for it
	@$(BIN)/lab next $(call options,RAFT KV SEED)

watch: $(READY) ## run the tests whenever a file is saved: [TEST=part]
	@$(BIN)/lab watch $(TEST) $(call options,RAFT KV SEED)

# This target runs all parts, so a part that is requested with it runs only once.
race: RACE = 1
race: $(READY) ## find data races: preempt threads at any line
	@$(call pytest,$(WORKERS)) -o console_output_style=classic $(foreach each,$(patsubst test-%,%,$(PARTS)),$(call part,$(each)))

stress: $(READY) ## run tests over many seeds: [TEST=name|part] [RUNS=n] [JOBS=n]
	@$(BIN)/lab stress $(TEST) $(call options,$(RUN) RUNS JOBS OUT)

scenario: $(READY) ## play scenarios: [FILE=x.scenario] [STEP=1]
	@$(BIN)/lab scenario $(if $(FILE),$(call quoted,$(FILE))) $(call options,$(RUN_OF_PEER) TIMELINE) $(if $(STEP),--step)

fuzz: $(READY) ## search for failing runs at random: [FOR=60s] [KEEP=1]
	@$(BIN)/lab fuzz $(call options,$(RUN_OF_PEER) FOR RUNS JOBS OUT) $(if $(KEEP),--keep)

# The name of fuzz before this version.
hunt:
	@echo "make hunt is called make fuzz now"
	@$(MAKE) --no-print-directory fuzz

#@ Look at a run

replay: $(READY) ## replay the last failed run, or this: TEST=name SEED=n
	@test -z "$(TEST)$(SEED)" || test -n "$(TEST)" -a -n "$(SEED)" || { echo "usage: make replay [TEST=test_name SEED=n] [RAFT=path/to/raft.py]"; exit 2; }
	@$(BIN)/lab replay $(TEST) $(call options,$(RUN) TIMELINE)

shrink: $(READY) ## minimize a failing run: TEST=name SEED=n
	@test -n "$(TEST)" -a -n "$(SEED)" || { echo "usage: make shrink TEST=test_name SEED=n [RAFT=path/to/raft.py]"; exit 2; }
	@$(BIN)/lab shrink $(TEST) $(call options,$(RUN) TIMELINE)

timeline: $(READY) ## show a run as a table, a column per peer: TEST=name SEED=n
	@test -n "$(TEST)" -a -n "$(SEED)" || { echo "usage: make timeline TEST=test_name SEED=n [RAFT=path/to/raft.py]"; exit 2; }
	@$(BIN)/lab timeline $(TEST) $(call options,$(RUN))

page: $(READY) ## show a run as one HTML page: TEST=name SEED=n [OUT=file.html]
	@test -n "$(TEST)" -a -n "$(SEED)" || { echo "usage: make page TEST=test_name SEED=n [RAFT=path/to/raft.py] [OUT=file.html]"; exit 2; }
	@$(BIN)/lab page $(TEST) $(call options,$(RUN) OUT)

live: $(READY) ## choose on a page what happens next: [TEST=name SEED=n] [FILE=x.scenario] [PEERS=n]
	@$(BIN)/lab live $(or $(TEST),$(if $(FILE),$(call quoted,$(FILE)))) $(call options,$(RUN_OF_PEER) PEERS PORT)

#@ Run as real processes

cluster: $(READY) ## run peers as three real processes, with a prompt
	@$(BIN)/lab cluster $(call options,RAFT KV) $(if $(OUT),--data $(call quoted,$(OUT)))

#@ Maintain

lint: $(READY) ## run ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## remove .venv and everything built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

# ---- From here on, only in the whole project; a handout's Makefile ends above (raftlab/tools/handout.py).

.PHONY: mutants lint-mutants lint-words soak grade handout bench

#@ Work on the lab

mutants: $(READY) ## measure which incorrect peers the lab catches: [RUNS=n] [JOBS=n]
	@$(BIN)/lab mutants run $(call options,RUNS JOBS ISOLATED)

CORRECT_PEERS := $(wildcard tests/peers/*/raft.py)

soak: $(READY) ## run everything over many seeds, for hours: [JOBS=n]
	@RAFTLAB_SOAK=1 $(BIN)/python -m pytest -q -n 0 --timeout 1800 tests/unit/cluster tests/unit/mutants tests/unit/tools/grade tests/unit/trace/test_choice_file.py tests/unit/scenarios/test_library.py
	@$(BIN)/lab mutants fuzz 120 $(call options,JOBS)
	@for peer in $(CORRECT_PEERS) raft/raft.py; do \
	  $(BIN)/lab stress --raft $$peer --runs $$(test $$peer = raft/raft.py && echo 1000 || echo 100) \
	    --out build/soak/$$(basename $$(dirname $$peer)) $(call options,JOBS) || exit 1; done

# lint also checks the types of the mutants tool, and searches names and texts for retired words.
lint: lint-mutants lint-words
lint-mutants: $(READY)
	$(BIN)/mypy -p tests.mutants.tool
lint-words: $(READY)
	$(BIN)/python -m pytest -q -n 0 tests/unit/test_words.py

bench: $(READY) ## measure what operations cost
	$(BIN)/python -m bench

#@ Teach

handout: $(READY) ## write the tree a student starts from: OUT=dir
	@test -n "$(OUT)" || { echo "usage: make handout OUT=dir"; exit 2; }
	@$(BIN)/lab handout $(call quoted,$(OUT))

grade: $(READY) ## grade a class in a sandbox: SUBMISSIONS=dir OUT=dir [HIDDEN=dir]
	@test -n "$(SUBMISSIONS)" -a -n "$(OUT)" || { echo "usage: make grade SUBMISSIONS=dir OUT=dir [HIDDEN=dir] [RUBRIC=file.toml] [ROSTER=file.csv] [OVERRIDES=file.toml] [SOLUTION=raft.py] [KV=server.py] [JOBS=n]"; exit 2; }
	@$(BIN)/lab grade $(call quoted,$(SUBMISSIONS)) $(call options,OUT KV JOBS) $(if $(HIDDEN),--hidden $(call quoted,$(HIDDEN))) $(if $(RUBRIC),--rubric $(call quoted,$(RUBRIC))) $(if $(ROSTER),--roster $(call quoted,$(ROSTER))) $(if $(OVERRIDES),--overrides $(call quoted,$(OVERRIDES))) $(if $(SOLUTION),--solution $(call quoted,$(SOLUTION)))
