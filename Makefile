export PATH := $(PATH):/usr/sbin:/sbin
PYTHON := .venv/bin/python

.NOTPARALLEL:
.PHONY: demo test compat fuzz soak kills restarts lint cluster bench generate picture proto docs release dist image dist-test install

demo: install .venv/.stamp ; $(PYTHON) -m tests.node.demo
test: install .venv/.stamp ; $(PYTHON) -m pytest -n 5 --dist worksteal
compat: install .venv/.stamp # every Python, with the newest dependencies; the oldest with the oldest
	$(PYTHON) -m tools.pythons
	$(PYTHON) -m tools.pythons --lowest 3.11
lint: .venv/.stamp
	.venv/bin/ruff check && .venv/bin/ruff format --check
	.venv/bin/mypy && .venv/bin/mypy packaging
	.venv/bin/vulture
fuzz: .venv/.stamp ; $(PYTHON) -m tests.fuzz
soak: install .venv/.stamp ; $(PYTHON) -m tests.node.soak $(ROWS) $(if $(SECONDS),--seconds $(SECONDS))
kills: install .venv/.stamp ; $(PYTHON) -m tests.node.kills && $(PYTHON) -m tests.node.cluster_kills
restarts: .venv/.stamp ; $(PYTHON) -m tests.proxy.restarts
cluster: install .venv/.stamp # BIN: kube-apiserver, mini-etcd, kubelet and kubectl, see tests/cluster
	CLUSTER_BIN=$(BIN) tests/cluster/enclosed.sh $(PYTHON) -m pytest -n 0 tests/cluster
bench: install .venv/.stamp ; $(PYTHON) -m benchmarks
generate: .venv/.stamp ; $(PYTHON) -m tools.generate
proto: .venv/.stamp ; $(PYTHON) proto/generate.py
picture: install .venv/.stamp .venv-picture/.stamp # on a terminal: it records one
	.venv-picture/bin/termtosvg docs/image-pull-progress.svg -g 80x24 -m 500 -t window_frame \
		-c '$(PYTHON) -m tests.node.demo'
docs: .venv-docs/.stamp ; .venv-docs/bin/python -m tools.site # needs mandoc; into build/site
FOR_ARM := aarch64-linux-gnu-strip:binutils-aarch64-linux-gnu
dist: .venv-dist/.stamp # ARCH=arm64: for that machine
	@packaging/install.sh $(if $(filter arm64,$(ARCH)),$(FOR_ARM))
	.venv-dist/bin/python packaging/dist.py $(if $(ARCH),--arch $(ARCH))
image: .venv-dist/.stamp # ARCH=arm64: for that machine, and an index of both if both were built
	@packaging/install.sh $(if $(filter arm64,$(ARCH)),$(FOR_ARM))
	.venv-dist/bin/python packaging/dist.py image $(if $(ARCH),--arch $(ARCH))
dist-test: install .venv/.stamp # of what `make dist` has built
	@packaging/install.sh $(if $(wildcard dist/*arm64*),qemu-aarch64-static:qemu-user-static)
	PYCRICTL_DIST=$(CURDIR)/dist $(PYTHON) -m pytest -n 0 tests/packaging

release: .venv-dist/.stamp # of the commit with the version's tag; SIGN=KEY signs it
	@packaging/install.sh
	.venv-dist/bin/python packaging/release.py $(if $(SIGN),--sign $(SIGN))

install: ; @tests/node/install.sh

.venv/.stamp: pyproject.toml
	python3 -m venv .venv
	$(PYTHON) -m pip install --quiet --upgrade pip==26.3
	$(PYTHON) -m pip install --quiet --editable . --group test --group dev
	touch $@

.venv-dist/.stamp: pyproject.toml
	python3 -m venv .venv-dist
	.venv-dist/bin/python -m pip install --quiet --upgrade pip==26.3
	.venv-dist/bin/python -m pip install --quiet --group dist
	touch $@

.venv-docs/.stamp: pyproject.toml
	python3 -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --upgrade pip==26.3
	.venv-docs/bin/python -m pip install --quiet --group docs
	touch $@

.venv-picture/.stamp: pyproject.toml
	python3 -m venv .venv-picture
	.venv-picture/bin/python -m pip install --quiet --upgrade pip==26.3
	.venv-picture/bin/python -m pip install --quiet --group picture
	touch $@
