# On Debian the system's own Python, even if PATH finds another first.
PYTHON3 ?= $(shell grep -qsx ID=debian /etc/os-release && echo /usr/bin/)python3
export PYTHON3
export PATH := $(PATH):/usr/sbin:/sbin
PYTHON := .venv/bin/python
# The chart is tested with Helm itself, where there is a package of it.
HELM := $(if $(filter x86_64,$(shell uname -m)),.venv/bin/helm)

.NOTPARALLEL:
.PHONY: help demo playground unit coverage test lint compat conformance cluster bench soak fuzz kills restarts generate proto picture docs dist image dist-test release
.PHONY: node install again # what the others need

help: ## the targets, as here
	@sed -En 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/p' Makefile | expand -t 12

demo: node .venv/.stamp ## a 30-second demo on a disposable node
	$(PYTHON) -m tests.e2e.node.demo
playground: node .venv/.stamp ## a shell on such a node; all of it is gone when the shell ends
	@$(PYTHON) -m tests.e2e.node.playground
UNIT := -m "not (node or root or debian or slow)" --ignore tests/e2e/cluster --ignore tests/packaging
unit: .venv/.stamp ## the tests that need neither root, nor Debian, nor a node
	$(PYTHON) -m pytest -n 8 --dist worksteal $(UNIT)
COVERING := $(addprefix tests/,streams/wire copy pulls show diagnosis node/logs base/test_units.py base/test_yamldata.py \
	cluster/agent/test_objects.py cluster/kubectl/test_imagepulls.py \
	cli/test_board.py cli/test_lists.py cli/test_logs.py cli/test_replays.py cli/test_why.py)
test: install .venv/.stamp $(HELM) ## all tests, including those on a real containerd; .ci/run also runs lint
	$(PYTHON) -m pytest -n 6 --dist worksteal
coverage: .venv/.stamp ## the branch coverage of the pure packages; fails below a minimum
	.venv/bin/coverage run -m pytest -n 0 -q -m "not root and not slow" $(COVERING) && .venv/bin/coverage report
lint: .venv/.stamp ## ruff, mypy --strict, vulture
	.venv/bin/ruff check && .venv/bin/ruff format --check
	.venv/bin/mypy && .venv/bin/mypy packaging
	.venv/bin/vulture
compat: install .venv/.stamp ## the tests without a node: every Python, newest and oldest dependencies
	$(PYTHON) -m tools.pythons
	$(PYTHON) -m tools.pythons --lowest 3.11
CONFORMANCE := ENDPOINT LIMIT RETRY_ENDPOINT RETRY_S COPIES_PER_POD COPY_SIZE_LIMIT
conformance: install .venv/.stamp ## the proposals' rules, for the proxy or ENDPOINT=unix:///… (tests/conformance)
	@CONFORMANCE_TABLE= CONFORMANCE_URL_S=$(or $(URL_S),60) \
		$(foreach name,$(CONFORMANCE),CONFORMANCE_$(name)='$($(name))') \
		$(PYTHON) -m pytest -n 0 -q --tb=short tests/conformance --ignore tests/conformance/test_suite.py
cluster: install .venv/.stamp ## the tests with a kubelet and API server, from BIN=DIR (tests/e2e/cluster)
	CLUSTER_BIN=$(BIN) tests/e2e/cluster/enclosed.sh $(PYTHON) -m pytest -n 0 tests/e2e/cluster
bench: install .venv/.stamp ## benchmarks, as ratios of two programs in one run
	$(PYTHON) -m benchmarks
soak: install .venv/.stamp ## ten minutes of everything at once, then attacks; ROWS=garbage SECONDS=20: one attack
	$(PYTHON) -m tools.torture.soak $(ROWS) $(if $(SECONDS),--seconds $(SECONDS))
fuzz: .venv/.stamp ## ten minutes of damaged input for every reader of foreign data
	$(PYTHON) -m tools.torture.fuzz
kills: install .venv/.stamp ## copies killed at random moments
	$(PYTHON) -m tools.torture.kills && $(PYTHON) -m tools.torture.cluster_kills
restarts: .venv/.stamp ## fifty rounds of a proxy reloaded, restarted, killed, badly upgraded
	$(PYTHON) -m tools.torture.restarts
generate: .venv/.stamp ## the man pages, from the commands and man/prose; ARCHITECTURE.md's list of modules
	$(PYTHON) -m tools.generate
proto: .venv/.stamp ## the Python modules, from proto/
	$(PYTHON) proto/generate.py
picture: node .venv/.stamp .venv-picture/.stamp ## the recording in README.md
	.venv-picture/bin/python -m tools.picture
docs: .venv/.stamp ## a site of README.md, docs and the man pages, in build/site; needs mandoc
	$(PYTHON) -m tools.site

FOR_ARM := aarch64-linux-gnu-strip:binutils-aarch64-linux-gnu
dist: .venv-dist/.stamp ## the packages, as root on Debian; ARCH=arm64: for aarch64
	@packaging/install.sh $(if $(filter arm64,$(ARCH)),$(FOR_ARM))
	.venv-dist/bin/python packaging/dist.py $(if $(ARCH),--arch $(ARCH))
image: .venv-dist/.stamp ## the container images; ARCH=arm64: for aarch64, and an index once both are built
	@packaging/install.sh $(if $(filter arm64,$(ARCH)),$(FOR_ARM))
	.venv-dist/bin/python packaging/dist.py image $(if $(ARCH),--arch $(ARCH))
dist-test: install .venv/.stamp $(HELM) ## tests of what `make dist image` has built
	@packaging/install.sh $(if $(wildcard dist/*arm64*),qemu-aarch64-static:qemu-user-static)
	PYCRICTL_DIST=$(CURDIR)/dist $(PYTHON) -m pytest -n 0 tests/packaging
release: .venv-dist/.stamp ## all files of a release, from the version's tag; SIGN=KEY signs them
	@packaging/install.sh
	.venv-dist/bin/python packaging/release.py $(if $(SIGN),--sign $(SIGN))

.venv/bin/helm: .venv/.stamp
	$(PYTHON) -m tests.packaging.helm $@

node: ; @tests/e2e/node/install.sh node
install: ; @tests/e2e/node/install.sh

.venv/.stamp: WANTS := --editable . --group test --group dev
.venv-dist/.stamp: WANTS := --group dist
.venv-picture/.stamp: WANTS := --group picture
# Created anew if PYTHON3 is another Python.
.venv/.stamp: $(if $(filter-out $(PYTHON3),$(file <.venv/.stamp)),again)
%/.stamp: pyproject.toml
	$(PYTHON3) -m venv --clear $*
	$*/bin/python -m pip install --quiet --upgrade pip==26.3
	$*/bin/python -m pip install --quiet $(WANTS)
	echo $(PYTHON3) >$@
