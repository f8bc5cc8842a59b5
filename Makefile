# Every target sets up what it needs; run `make` alone for the list.
.DEFAULT_GOAL := help
.PHONY: help setup demo run test test-long crash crash-long test-rocm test-slurm test-newer-slurm slurm test-docker docker userlands rig test-rig mutants enforcement lint format docs man screenshots model bench bench-check bench-placement soak build deb rpm install-units install-slurm install-spank install-docker-plugin uninstall-docker-plugin clean
BIN := .venv/bin
MACHINE ?= mi300x-spx
CRASH_POINTS ?= 10000
POWER_POINTS ?= 4500
ERROR_POINTS ?= 1000
CYCLES ?= 100000

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

setup: ## .venv with the pinned dependencies and both packages (editable)
	@.ci/setup dev

demo: ## the main job, start to end, on this node's GPUs or on a simulated node
	@.ci/setup run
	@client/demo.sh

run: ## an agent in the foreground to try things on (MACHINE=mi300x-cpx for another node)
	@.ci/setup run
	@.ci/serve $(MACHINE)

test: setup userlands ## every test that this machine can run, then what was left out and why
	@.ci/test

test-long: setup userlands slurm docker ## the slow tests too, long property runs, every tier and kernel, the mutants (hours)
	@NODEAGENT_HYPOTHESIS=long .ci/test -m "slow or not slow" --timeout=3600
	@$(MAKE) crash-long
	@$(MAKE) soak CYCLES=10000
	@$(MAKE) bench-check
	@$(MAKE) test-rocm TESTS='-m "slow or not slow"'
	@$(MAKE) test-newer-slurm TESTS='-m "slow or not slow"'
	@$(MAKE) rig && SLURM_ROOT=$$(tests/slurm/newer) tests/rig/run -t 3600 tests/rig/suite --slurm
	@tests/rig/every-kernel
	@$(MAKE) mutants

crash: setup ## kill the agent at its system calls, with the power on and off, and a disk that fails (docs/crash.md)
	$(BIN)/python -m tests.crash --seconds 60
	$(BIN)/python -m tests.crash --seconds 25 --power
	$(BIN)/python -m tests.crash --seconds 25 --errors
	$(BIN)/python -m tests.crash --mutant freed-before-undone
	$(BIN)/python -m tests.crash --mutant never-synced --power
	$(BIN)/python -m tests.crash --mutant errors-ignored --errors

crash-long: setup ## the same at 10,000 distinct kill points, and 2,000 losses of power (hours)
	$(BIN)/python -m tests.crash --points $(CRASH_POINTS)
	$(BIN)/python -m tests.crash --points $(POWER_POINTS) --power
	$(BIN)/python -m tests.crash --points $(ERROR_POINTS) --errors

userlands:
	@tests/hook/userlands >/dev/null || echo "the hook's tests beside other C libraries are left out"

rig: ## a virtual machine whose kernel has dmem, in ~/.cache (minutes, once; docs/rig.md)
	@.ci/setup run
	@tests/rig/build

test-rig: rig ## the tests that need that kernel, and tests/node on an agent inside
	@tests/rig/run -t 3600 --suite

test-rocm: setup ## real ROCm on a fake kernel driver, under leases; the acceptance suite on that node
	@tests/fakekfd/chroot >/dev/null || echo "the newer ROCm is left out"
	@.ci/test tests/rocm $(TESTS)
	@tests/fakekfd/node_suite $(TESTS)

slurm:
	@.ci/install curl iproute2 libslurm-dev munge slurm-wlm slurm-wlm-basic-plugins || echo "the tests with a real Slurm are left out"
	@.ci/install charliecloud crun musl-tools podman || echo "the tests of containers in jobs are left out"

test-slurm: setup slurm ## jobs of a real Slurm: munge, slurmctld and two slurmd in namespaces of their own
	@.ci/test tests/slurm $(TESTS)

test-newer-slurm: setup slurm ## the same with the newest Slurm that Debian has, in a root of its own in ~/.cache
	@SLURM_ROOT=$$(tests/slurm/newer) && export SLURM_ROOT && .ci/test tests/slurm $(TESTS)

docker:
	@.ci/install busybox catatonit containerd curl docker.io gcc iproute2 musl-tools podman runc || echo "the tests with a real docker are left out"
	@tests/fakekfd/chroot >/dev/null || echo "the newer docker is left out"

test-docker: setup userlands docker ## containers of a real dockerd, old and newer, and of podman, on hosts in namespaces
	@.ci/test tests/docker $(TESTS)

mutants: setup ## leave each safeguard out in turn: its test must fail (minutes)
	$(BIN)/python tests/mutants/run.py --write

enforcement: setup ## write the tables of docs/enforcement.md, docs/hook.md and docs/doctor.md anew, from tests and code
	$(BIN)/python tests/docs/ways_out.py --write
	$(BIN)/python tests/docs/doctor_table.py --write
	$(BIN)/python tests/hook/matrix.py --write

lint: setup ## style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	shellcheck -x $(addprefix client/slurm/,prolog epilog task-prolog await-agent)

format: setup ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup ## docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

man: setup ## docs/_build/man: gpulease(1) and nodeagent(8)
	$(BIN)/sphinx-build -q -t man -b man docs docs/_build/man

screenshots: setup ## the dashboard's pictures in docs/images, from a headless Chromium
	$(BIN)/python -m tests.browser.screenshots docs/images

model: ## let spin search the protocol for what must never be, and find each known mistake (a minute)
	@docs/model/check

bench: setup ## measure every figure of docs/performance.md and write them there (12 minutes; NAMES= for some alone)
	$(BIN)/python tests/bench/run.py --write $(NAMES)

bench-check: setup ## fail where a ratio is more than 25 % worse than the committed one (minutes)
	$(BIN)/python tests/bench/run.py --check $(NAMES)

bench-placement: setup ## docs/placement.md's figures, replayed: the same on every machine (minutes)
	$(BIN)/python -m tests.bench.placing

soak: setup ## 100,000 leases, one after the other: nothing may grow (half an hour at least)
	$(BIN)/python tests/bench/soak.py --cycles $(CYCLES)

build: setup ## both wheels, in dist/
	@.ci/build

deb: setup ## a Debian package with its libraries, which installs offline, in dist/ (PYTHONS=3.13 VERSION=... for less, or another)
	@.ci/deb

rpm: setup ## the same as an rpm
	@.ci/rpm

SLURM_SCRIPTS := $(DESTDIR)/usr/libexec/nodeagent/slurm
SLURMD_UNIT := $(DESTDIR)/etc/systemd/system/slurmd.service.d
install-slurm: ## Slurm's prolog, epilog and task-prolog, as root, in [DESTDIR]/usr/libexec/nodeagent/slurm
	install -d -o root -g root -m 0755 $(SLURM_SCRIPTS)
	install -o root -g root -m 0755 -t $(SLURM_SCRIPTS) $(addprefix client/slurm/,prolog epilog task-prolog await-agent)
	install -o root -g root -m 0644 -t $(SLURM_SCRIPTS) $(addprefix client/slurm/,agent.sh records.sh ask.py prolog.conf.example job_submit.lua job_submit.lua.example)
	install -d -o root -g root -m 0755 $(SLURMD_UNIT)
	install -o root -g root -m 0644 -t $(SLURMD_UNIT) client/slurm/slurmd.service.d/nodeagent.conf

install-spank: ## Slurm's plugin that starts jobs' programs with the hook; needs Slurm's headers (libslurm-dev)
	install -d -o root -g root -m 0755 $(SLURM_SCRIPTS) $(DESTDIR)/etc/gpulease
	$(CC) -std=gnu11 -O2 -Wall -Wextra -Wshadow -shared -fPIC -o $(SLURM_SCRIPTS)/gpulease.so client/slurm/spank/gpulease.c
	[ -e $(DESTDIR)/etc/ld.so.preload ] || install -o root -g root -m 0644 /dev/null $(DESTDIR)/etc/ld.so.preload

install-units: ## the agent's units, its group and directories, as root (docs/install.md); the package brings them by itself
	install -d -m 0755 $(DESTDIR)/etc/systemd/system
	install -o root -g root -m 0644 -t $(DESTDIR)/etc/systemd/system systemd/nodeagent.service systemd/nodeagent.socket \
	  systemd/nodeagent-outside.socket systemd/nodeagent-outside@.service systemd/gpulease.slice
	install -D -o root -g root -m 0644 systemd/nodeagent.sysusers $(DESTDIR)/etc/sysusers.d/nodeagent.conf
	install -D -o root -g root -m 0644 systemd/nodeagent.tmpfiles $(DESTDIR)/etc/tmpfiles.d/nodeagent.conf

DOCKER_PLUGIN := $(addprefix systemd/nodeagent-docker-plugin.,socket service)
install-docker-plugin: ## the units of docker's authorization plugin, as root (docs/docker-plugin.md)
	install -D -o root -g root -m 0644 -t $(DESTDIR)/etc/systemd/system $(DOCKER_PLUGIN)

uninstall-docker-plugin: ## remove them, once docker's settings do not name the plugin
	/opt/nodeagent/bin/nodeagent docker-plugin --may-remove
	systemctl disable nodeagent-docker-plugin.socket
	rm -f $(addprefix $(DESTDIR)/etc/systemd/system/,$(notdir $(DOCKER_PLUGIN)))
	systemctl daemon-reload
	-systemctl stop nodeagent-docker-plugin.socket nodeagent-docker-plugin.service

clean: ## what the other targets left, but for .venv
	rm -rf build dist client/gpulease/build docs/_build .coverage .pytest_cache .mypy_cache .ruff_cache \
	  .hypothesis .import_linter_cache
	find nodeagent client migrations tests docs .ci -name __pycache__ -prune -exec rm -rf {} +
