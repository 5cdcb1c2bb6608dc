# All tasks of this repository; `make` lists them. Written for Debian 12.
#
# One rule: a target works on a clean machine and is fast the second time.

PYTHON := /usr/bin/python3
VENV   := .venv
PY     := $(VENV)/bin/python
# image: one static executable with a start-up image. pyinstaller: the portable variant, which starts slowly.
PACKER ?= image
RELEASE := dist/release
FIREWALLD := build/firewalld
ARM64 := build/arm64
# Waits for other programs that install packages.
APT := -qq -o APT::Sandbox::User=root -o DPkg::Lock::Timeout=600
# One build at a time uses apt, also of those in other checkouts: `apt-get update` does not wait for its lock.
APT_LOCK := exec 9<$(firstword $(wildcard /var/lib/dpkg) Makefile); flock 9

# The Debian release of the test root and of the packages that `make release` builds.
DEBIAN := bookworm
# Of newer-python, newer-root and debian-kernel. Packages of other suites come from the archive of this machine's apt, or
# from MIRROR=URI. For Ubuntu, MIRROR is a line of sources.list: MIRROR="deb [signed-by=FILE] URI noble main universe".
DISTRIBUTION ?= trixie
APT_SOURCES := $(CURDIR)/pack/apt_sources.sh
# libmd: for Python 3.12 and later (pack/sha2.c).
BUILD_PACKAGES := gcc binutils libc6-dev libpython3-dev libexpat1-dev zlib1g-dev libmd-dev python3-venv python3-dev
TEST_PACKAGES  := conntrack make dnsmasq-base kea-dhcp4-server kea-dhcp6-server udhcpd iproute2 iputils-ping iptables nftables strace procps util-linux e2fsprogs \
    python3-urllib3
DEMO_PACKAGES := iproute2 iputils-ping iptables nftables
RUNTIME_PACKAGES := containernetworking-plugins podman containerd runc crun busybox-static curl openssl git
FIREWALLD_PACKAGES := python3-firewall python3-nftables dbus-daemon
SECOND_KERNEL_PACKAGES := user-mode-linux kmod
DEBIAN_KERNEL_PACKAGES := qemu-system-x86 kmod xz-utils

# The root file system of `make test`: the same packages on every machine.
TEST_ROOT := build/root
# systemd: for `systemd-analyze verify`, and as process 1 of a machine. man-db, openssh-client, lintian: for the pages, the
# signature and the packages of a release.
TEST_ROOT_PACKAGES = $(BUILD_PACKAGES) systemd man-db openssh-client lintian $(TEST_PACKAGES) $(RUNTIME_PACKAGES) \
    $(FIREWALLD_PACKAGES) $(SECOND_KERNEL_PACKAGES) $(ARM64_TEST_PACKAGES)
# The packages of the node agent's image. Without the essential packages that it does not need (perl, util-linux, apt) it
# is a third of a minimal Debian; diffutils is for the installation of the others.
AGENT_BASE_PACKAGES := base-files base-passwd dpkg dash coreutils diffutils sed grep debianutils libc-bin \
    python3-urllib3 python3-prometheus-client iptables
AGENT_BASE_SUITES := $(DEBIAN) $(DEBIAN)-updates $(DEBIAN)-security
AGENT_BASE := build/agent-base.tar
AGENT_BASE_STAMP = build/.agent-base-$(firstword $(shell echo $(AGENT_BASE_PACKAGES) | cksum))
# The same for arm64: that of amd64 with the files of the packages for arm64 (pack/release/foreign_base.py).
AGENT_BASE_ARM64 := build/agent-base-arm64.tar
# Files that no program of the image reads; the licences stay.
AGENT_BASE_WITHOUT := /usr/share/doc/* /usr/share/man/* /usr/share/info/* /usr/share/locale/* /usr/share/lintian/* \
    /usr/lib/*/gconv/*
# The root file system of the tests with the runtimes of a newer Debian, $(DISTRIBUTION). .venv requires the Python of the
# machine, which is Debian 12's: only that comes from there, by its low priority. A mirror may lag behind sid, whose index
# is valid for a week; its signature is checked. Only sid has apptainer.
NEWER_ROOT = build/runtimes/$(DISTRIBUTION)
NEWER_ROOT_PACKAGES = $(notdir $(realpath $(PYTHON))) $(filter-out python3-%,$(TEST_PACKAGES)) $(RUNTIME_PACKAGES) \
    $(if $(filter sid,$(DISTRIBUTION)),apptainer)
NEWER_ROOT_STAMP = $(NEWER_ROOT)/.made-$(firstword $(shell echo $(NEWER_ROOT_PACKAGES) | cksum))
NEWER_ROOT_PINS := Package: *\nPin: release n=$(DEBIAN)\nPin-Priority: 100\n

# Minimal root file systems, in which tests/release runs the archive of a release.
DEBIAN_ROOTS := $(foreach release,bullseye bookworm trixie sid,build/debian/$(release).tar)

# Changes with the list of packages, which then are unpacked again.
TEST_ROOT_STAMP = $(TEST_ROOT)/.made-$(firstword $(shell echo $(TEST_ROOT_PACKAGES) | cksum))

# Debian's newest reference plugins, each version in a directory, unpacked from sid, which has the newest of all suites.
# `newest` is a link to the last one. Apt's lists and state are separate: this machine's apt needs no other suite.
REFERENCES := $(CURDIR)/build/reference
REFERENCE_SUITE := sid
REFERENCE_APT := $(APT) -o Dir::Etc::sourcelist=$(REFERENCES)/apt/sources.list -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State=$(REFERENCES)/apt -o Dir::State::status=/dev/null -o Dir::Cache=$(REFERENCES)/apt \
    -o Acquire::Languages=none

ARM64_TOOLS := gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
ARM64_TEST_PACKAGES := qemu-user qemu-system-arm libc6-dev-arm64-cross libgcc-12-dev-arm64-cross
LIBPYTHON := lib$(notdir $(realpath $(PYTHON)))
ARM64_PACKAGES := $(addprefix $(LIBPYTHON)-,dev stdlib minimal) libexpat1-dev zlib1g-dev libmd-dev
# Separate lists and state: this machine's apt and dpkg need no second architecture.
ARM64_APT := $(APT) -o APT::Architecture=arm64 -o APT::Architectures=arm64 \
    -o Dir::State=$(CURDIR)/$(ARM64)/apt -o Dir::State::status=/dev/null -o Dir::Cache=$(CURDIR)/$(ARM64)/apt
# With the suites of the root file system for amd64.
ARM64_AGENT_APT := $(ARM64_APT) -o Dir::State=$(CURDIR)/$(ARM64)/agent/apt \
    -o Dir::Etc::sourcelist=$(CURDIR)/$(ARM64)/agent/sources.list -o Dir::Etc::sourceparts=/dev/null

SOURCES := $(sort $(shell find process cni kernel attachment ipam plugins podwire pack/stand_ins -name '*.py'))
SOURCES += $(wildcard kernel/*.c pack/*.c pack/*.h pack/*.ld pack/*.py)
# Changes when a source file is added, removed or renamed. The time of a directory also changes with __pycache__.
SOURCES_STAMP := build/.sources-$(firstword $(shell echo $(SOURCES) | cksum))

.DELETE_ON_ERROR:
.PHONY: help venv binaries check test test-all test-second-kernel mutants nightly demo bench bench-quick bench-newest bench-cluster bench-kubernetes image-tests reproducible clean \
    needs-build needs-demo needs-test needs-second-kernel newer-python release outdated sign test-root new-test-root newer-root new-newer-root agent-base new-agent-base agent-base-arm64 new-agent-base-arm64 \
    agent-base-if-possible agent-base-arm64-if-possible \
    debian-kernel test-debian-kernel needs-debian-kernel newest-reference test-newest-reference debian-roots test-clients test-deploy test-release test-arm64 test-cluster kubernetes kubernetes-cluster cluster test-kubernetes \
    arm64 arm64-machine reproducible-arm64 needs-arm64 needs-arm64-machine

# $(call say,TARGET): prints what a target does and how long it takes: its line of `make help`.
say = sed -n 's/^$(1):.*\#\# /$(1): /p' Makefile
# $(call progress,NAME) COMMAND: runs a command that is silent for more than ten seconds.
progress = pack/progress.sh $(1)

help: ## print this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS="$$(printf '\t')" read -r name what; do \
	    printf 'make %-18s %s\n' "$$name" "$$what"; done

venv: $(VENV)/.made ## create .venv with this project and its tools, from Debian's Python (a minute)

$(VENV)/.made: pyproject.toml $(wildcard kernel/*.c) | needs-build
	@$(call say,venv)
	@$(call progress,venv) $(PYTHON) -m venv --clear $(VENV)
	@$(call progress,venv) $(VENV)/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

ifeq ($(PACKER),pyinstaller)
binaries: dist/pyinstaller/bin/podwire ## build the executables: dist/bin, or with PACKER=pyinstaller dist/pyinstaller/bin (1 to 2 minutes)
else
binaries: dist/bin/podwire
endif

$(SOURCES_STAMP):
	@mkdir -p $(@D) && rm -f build/.sources-* && touch $@

dist/bin/podwire: $(SOURCES) $(SOURCES_STAMP) $(VENV)/.made | needs-build
	@$(call say,binaries)
	@PYTHONHASHSEED=0 $(call progress,binaries) $(PY) -m pack.build

dist/pyinstaller/bin/podwire: $(SOURCES) $(SOURCES_STAMP) $(VENV)/.made | needs-build
	@$(call say,binaries)
	@$(PY) -m pack.portable

arm64: dist/arm64/bin/podwire $(ARM64)/_podwire.so ## cross-build the executables for 64-bit ARM: dist/arm64/bin (5 minutes)

dist/arm64/bin/podwire: $(SOURCES) $(SOURCES_STAMP) $(VENV)/.made $(ARM64)/sysroot/.made | needs-build needs-arm64
	@$(call say,arm64)
	@PYTHONHASHSEED=0 $(call progress,arm64) $(PY) -m pack.build --arm64 $(ARM64)/sysroot --work $(ARM64)/image --out $(@D)

check: needs-build ## run linters, type checks, import rules and unit tests; needs no root once a compiler is installed (40 seconds)
	@$(call say,check)
	@$(PYTHON) -m tests.runner check

test: ## run `check` and a short selection of the other tests, with real packets on two kernels and a runtime (root; 9 minutes)
	@$(call say,test)
	@$(MAKE) --no-print-directory needs-build
	@$(PYTHON) -m tests.runner test

test-all: ## run every test, also of releases, ARM, all runtimes and API servers; some cases of tests/hard (root; 40 minutes)
	@$(call say,test-all)
	@$(MAKE) --no-print-directory needs-build
	@$(PYTHON) -m tests.runner test-all

test-root: $(FIREWALLD)/usr/sbin/firewalld ## create the root file system in which `make test` runs its parts (root; 3 minutes)
	@[ -e $(TEST_ROOT_STAMP) ] || $(MAKE) --no-print-directory new-test-root

new-test-root:
	@$(call need,mmdebstrap)
	@$(call say,test-root)
	@rm -rf $(TEST_ROOT)
	@sources=$$($(APT_SOURCES) $(DEBIAN)) && $(call progress,test-root) \
	    mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io --include="$(TEST_ROOT_PACKAGES)" $(DEBIAN) $(TEST_ROOT) "$$sources"
	@$(call end_root,$(TEST_ROOT),$(TEST_ROOT_STAMP))

newer-root: ## create the root file system of `make test-clients NEWER=1`: DISTRIBUTION=trixie, MIRROR=... (root; 3 minutes)
	@[ -e $(NEWER_ROOT_STAMP) ] || $(MAKE) --no-print-directory new-newer-root

new-newer-root:
	@$(call need,mmdebstrap)
	@$(call say,newer-root)
	@rm -rf $(NEWER_ROOT) && mkdir -p $(dir $(NEWER_ROOT))
	@sources=$$($(APT_SOURCES) $(DISTRIBUTION) $(DEBIAN)) && $(call progress,newer-root) \
	    mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io --aptopt='Acquire::Check-Valid-Until "false"' \
	    --setup-hook='printf "$(NEWER_ROOT_PINS)" >"$$1/etc/apt/preferences.d/python"' \
	    --include="$(NEWER_ROOT_PACKAGES)" $(DISTRIBUTION) $(NEWER_ROOT) "$$sources"
	@ln -sf $(notdir $(realpath $(PYTHON))) $(NEWER_ROOT)$(PYTHON)
	@$(call end_root,$(NEWER_ROOT),$(NEWER_ROOT_STAMP))

debian-roots: $(DEBIAN_ROOTS) ## create minimal Debians 11, 12, 13 and sid for the tests of a release: build/debian (root; 2 minutes)

build/debian/%.tar:
	@$(call need,mmdebstrap)
	@$(call say,debian-roots)
	@mkdir -p $(@D) && sources=$$($(APT_SOURCES) $*) && $(call progress,$*) \
	    mmdebstrap --quiet --format=tar --variant=minbase --dpkgopt=force-unsafe-io \
	    --aptopt='Acquire::Check-Valid-Until "false"' --include=iptables $* $@.new "$$sources" && mv $@.new $@

# The cache is outside the project: `make clean` keeps it, and other checkouts use it. The copy in build/ is visible in
# the test root.
PODWIRE_CACHE ?= /var/cache/podwire
KUBERNETES := build/kubernetes
CLUSTER := build/kubernetes-cluster

kubernetes: ## build the kube-apiserver of the tests from Debian's source, once for this machine (10 CPU minutes)
	@built=$$(tests/kubernetes/build.sh "$(PODWIRE_CACHE)") && rm -rf $(KUBERNETES) && mkdir -p $(KUBERNETES) && \
	    cp --reflink=auto $$built/* $(KUBERNETES)

# Links, or copies if the cache is on another disk.
kubernetes-cluster: kubernetes ## build the other programs of a cluster, upstream's tests and images, once for this machine (20 CPU minutes)
	@$(call say,kubernetes-cluster)
	@$(call need,gcc libc6-dev mmdebstrap)
	@rm -rf $(CLUSTER) && mkdir -p $(CLUSTER) && for kind in cluster debian; do \
	    built=$$(tests/kubernetes/build.sh "$(PODWIRE_CACHE)" $$kind) || exit 1; \
	    cp -rl $$built/. $(CLUSTER) 2>/dev/null || cp -r $$built/. $(CLUSTER) || exit 1; \
	done

cluster: binaries test-root agent-base kubernetes-cluster ## start a Kubernetes of three nodes with podwire, to play with, until Ctrl-C; MODE=router (root; 2 minutes)
	@$(call say,cluster)
	@$(PY) -m tests.kubernetes $(if $(MODE),--mode $(MODE))

test-kubernetes: binaries test-root agent-base kubernetes-cluster ## run upstream's tests on such clusters; KEEP=1: the first one stays until Ctrl-C (root; 60 minutes, with the builds 90)
	@$(call say,test-kubernetes)
	@$(PY) -m tests.kubernetes $(if $(KEEP),--keep) --test $(if $(NIGHTLY),tests/kubernetes --nightly) && $(PY) -m tests.kubernetes --every-mode

agent-base: ## create the Debian root file system of the node agent's image (root; a minute)
	@[ -e $(AGENT_BASE_STAMP) ] && [ -e $(AGENT_BASE) ] || $(MAKE) --no-print-directory new-agent-base

# With a SOURCE_DATE_EPOCH, compiled Python modules are valid whatever the time of their source, which pack.release sets.
new-agent-base:
	@$(call need,mmdebstrap)
	@$(call say,agent-base)
	@rm -f build/.agent-base-* $(AGENT_BASE) && mkdir -p build
	@set -f; sources=$$($(APT_SOURCES) $(AGENT_BASE_SUITES)) && \
	    SOURCE_DATE_EPOCH=1700000000 mmdebstrap --quiet --format=tar --variant=custom --dpkgopt=force-unsafe-io \
	    $(foreach path,$(AGENT_BASE_WITHOUT),--dpkgopt='path-exclude=$(path)') \
	    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
	    --include="$(AGENT_BASE_PACKAGES)" $(DEBIAN) $(AGENT_BASE).new "$$sources" && mv $(AGENT_BASE).new $(AGENT_BASE)
	@touch $(AGENT_BASE_STAMP)

agent-base-arm64: agent-base venv needs-arm64 ## create the same root file system for 64-bit ARM (half a minute)
	@[ $(AGENT_BASE_ARM64) -nt $(AGENT_BASE) ] || $(MAKE) --no-print-directory new-agent-base-arm64

new-agent-base-arm64:
	@$(call say,agent-base-arm64)
	@rm -rf $(AGENT_BASE_ARM64) $(ARM64)/agent && mkdir -p $(ARM64)/agent && $(APT_SOURCES) $(AGENT_BASE_SUITES) >$(ARM64)/agent/sources.list
	@apt-get $(ARM64_AGENT_APT) update && packages=$$(tar -xOf $(AGENT_BASE) ./var/lib/dpkg/status | \
	    awk -v RS= '/\nArchitecture: amd64\n/ { print $$2 }') && \
	    cd $(ARM64)/agent && apt-get $(ARM64_AGENT_APT) download $$packages
	@$(PY) -m pack.release.foreign_base $(AGENT_BASE) $(ARM64)/agent $(AGENT_BASE_ARM64)

test-second-kernel: needs-test needs-second-kernel binaries ## run tests/netns, or TESTS=..., on Linux 6.1 (user-mode Linux; 60 minutes for all)
	@$(call say,test-second-kernel)
	$(PY) -m tests.support.second_kernel $(or $(TESTS),tests/netns)

debian-kernel: needs-debian-kernel ## unpack the kernel of a Debian release, not installed: DISTRIBUTION=trixie, MIRROR=... (a minute)
	@$(call say,debian-kernel)
	@tests/support/debian_kernel_unpack.sh $(DISTRIBUTION) build/kernels/$(DISTRIBUTION)

test-debian-kernel: binaries test-root debian-kernel ## run a sample of tests/netns, or TESTS=..., on the kernel of DISTRIBUTION=trixie, emulated (root; 20 minutes)
	@$(call say,test-debian-kernel)
	PODWIRE_BIN_DIR=dist/bin $(PY) -m tests.support.debian_kernel --release $(DISTRIBUTION) $(TESTS)

test-clients: needs-build ## test podman and containerd with the built files, NEWER=1: also the runtimes of newer Debians (root; 10 minutes)
test-deploy: needs-build ## test deploy/ with the built files (root; 5 minutes)
test-release: needs-build ## test the files of `make release` (root; 5 minutes)
test-arm64: needs-build ## test the executables for 64-bit ARM, in emulation (root; 10 minutes)
test-cluster: needs-build ## test the agent with API servers (root; 10 minutes)

test-newest-reference: needs-build ## compare with the newest reference plugins (root; 20 minutes)

test-clients test-deploy test-release test-arm64 test-cluster test-newest-reference: test-%:
	@$(call say,$@)
	@$(PYTHON) -m tests.runner $* $(if $(filter test-clients,$@),$(if $(NEWER),newer-clients && $(PY) -m tests.clients.tested --write))

newest-reference: ## unpack the newest reference plugins of all Debian suites, not installed: build/reference/VERSION (half a minute)
	@$(call say,newest-reference)
	@mkdir -p $(REFERENCES)/apt/lists/partial $(REFERENCES)/apt/archives/partial
	@$(APT_SOURCES) $(REFERENCE_SUITE) >$(REFERENCES)/apt/sources.list
	@cd $(REFERENCES)/apt && apt-get $(REFERENCE_APT) update && rm -f *.deb && \
	    apt-get $(REFERENCE_APT) download containernetworking-plugins && $(call end_reference,newest)

mutants: venv test-root | needs-build ## examine 200 single faults in the product, which tests must notice; continues an interrupted run (root; 30 minutes, or hours after changes)
	@$(call say,mutants)
	@$(PY) -m tests.mutants $(OPTIONS)

nightly: needs-build ## run all kills and faults, tests/netns on all other kernels, newer runtimes, then clusters; continues an interrupted run (root; 4 hours)
	@$(call say,nightly)
	@$(PYTHON) -m tests.runner nightly
	@$(PY) -m tests.promises
	@$(PY) -m tests.clients.tested

demo: binaries needs-demo ## show what the plugins do, step by step (root; 10 seconds after the build)
	@$(call say,demo)
	$(PY) -m tests.demo

bench: binaries needs-test ## compare with the reference plugins, or REFERENCE=DIR; writes docs/performance.md and its plot (root; 10 minutes)
	@$(call say,bench)
	$(PY) -m bench.run --json build/bench.json $(if $(REFERENCE),,--write)

bench-quick: binaries needs-test ## print the main rows of bench, also for REFERENCE=DIR (root; 2 minutes)
	@$(call say,bench-quick)
	$(PY) -m bench.run --quick --json build/bench-quick.json

bench-newest: binaries needs-test newest-reference ## the same against the newest reference plugins; writes their table in docs/performance.md (root; 2 minutes)
	@$(call say,bench-newest)
	REFERENCE=$(REFERENCES)/newest $(PY) -m bench.run --quick --json build/bench-newest.json --write

bench-cluster: binaries needs-test ## measure addresses for a whole cluster; writes the figures of docs/pools.md and agent.md (root; 15 minutes)
	@$(call say,bench-cluster)
	PODWIRE_BIN_DIR=dist/bin $(PY) -m bench.cluster --json build/bench-cluster.json --write

# Nodes 1 and 2 are on one link, node 3 on another: direct routes, and VXLAN.
bench-kubernetes: binaries test-root agent-base kubernetes-cluster needs-test newest-reference ## measure pods of a cluster with both plugins; writes the table in docs/performance.md (root; 8 minutes)
	@$(call say,bench-kubernetes)
	$(PY) -m tests.kubernetes --mode mixed --run $(PY) -m bench.kubernetes --json build/bench-kubernetes.json --write

image-tests: venv ## run CPython's tests inside a start-up image (10 minutes)
	@$(call say,image-tests)
	@$(call need,$(LIBPYTHON)-testsuite)
	PYTHONHASHSEED=0 $(PY) -m pack.image_tests

newer-python: ## build and run the specification suite with another Python: DISTRIBUTION=trixie, MIRROR=... (root; 10 minutes)
	@$(call say,newer-python)
	@$(call need,mmdebstrap)
	@pack/newer_python.sh $(DISTRIBUTION) $(CURDIR)/build/$(DISTRIBUTION)

reproducible: venv ## build twice, in two directories, and compare the files (3 minutes)
	@$(call say,reproducible)
	PYTHONHASHSEED=0 $(PY) -m pack.reproducible

# Without the cross compiler everything is for amd64 only, and without packages from Debian's archive there is no image of
# the node agent: the rest is packed. Two jobs, because half of a build for arm64 is one emulated program.
release: venv ## build and pack everything for amd64 and 64-bit ARM, for publication: dist/release (root; 8 minutes, then one)
	@$(call say,release)
	@if $(MAKE) --no-print-directory needs-arm64; then parts="arm64 agent-base-arm64-if-possible"; else \
	    echo "release: nothing for arm64, because its tools cannot be installed: $(ARM64_TOOLS)" >&2; \
	    rm -rf dist/arm64 $(AGENT_BASE_ARM64); parts=agent-base-if-possible; fi; \
	$(MAKE) --no-print-directory --jobs=2 binaries $$parts
	@$(call progress,release) $(PY) -m pack.release

agent-base-if-possible agent-base-arm64-if-possible: %-if-possible:
	-@$(MAKE) --no-print-directory $*

outdated: venv ## compare the packages in dist/release with Debian's lists, security updates included; status 1 if outdated (half a minute)
	@$(call say,outdated)
	@$(PY) -m pack.release.outdated --release $(RELEASE)

# The key is the publisher's: neither the build nor this repository has one.
sign: ## sign dist/release/SHA256SUMS with an SSH key: KEY=FILE
	@[ -n "$(KEY)" ] || { echo "sign: name the private key, or the public key of one in ssh-agent: make sign KEY=FILE" >&2; exit 2; }
	@cd $(RELEASE) && sha256sum --quiet --check SHA256SUMS && rm -f SHA256SUMS.sig
	@ssh-keygen -Y sign -q -f "$(KEY)" -n podwire-release $(RELEASE)/SHA256SUMS
	@echo "$(RELEASE)/SHA256SUMS.sig"

arm64-machine: $(ARM64)/machine/.made

reproducible-arm64: venv $(ARM64)/sysroot/.made | needs-arm64
	PYTHONHASHSEED=0 $(PY) -m pack.reproducible --arm64 $(ARM64)/sysroot

clean: ## remove all build output except .venv
	rm -rf build dist

# $(call end_root,DIRECTORY,STAMP): ends the creation of a root file system of tests, in which no name server answers.
define end_root
echo '127.0.0.1 localhost' >$(1)/etc/hosts; rm -f $(1)/etc/resolv.conf; touch $(1)/etc/resolv.conf $(2)
endef

# $(call need,PACKAGES): installs missing packages, as root.
need = pack/install_packages.sh $(1)

needs-build:
	@$(call need,$(BUILD_PACKAGES))

needs-arm64-machine:
	@$(call need,kmod)

needs-arm64:
	@$(call need,$(ARM64_TOOLS))

# The agent's extension.
$(ARM64)/_podwire.so: $(wildcard kernel/*.c) $(VENV)/.made $(ARM64)/sysroot/.made | needs-arm64
	@$(PY) -m pack.release.agent_files

# The files of Debian's packages for arm64.
$(ARM64)/sysroot/.made:
	@echo "unpacking Debian's Python for arm64 (half a minute)"
	@rm -rf $(@D) $(ARM64)/packages && mkdir -p $(@D) $(ARM64)/packages
	@apt-get $(ARM64_APT) update && cd $(ARM64)/packages && apt-get $(ARM64_APT) download $(ARM64_PACKAGES)
	@for package in $(ARM64)/packages/*.deb; do dpkg-deb --extract $$package $(@D) || exit 1; done
	@touch $@

# A kernel and busybox for the virtual machine that tests/arm64/test_machine.py boots.
$(ARM64)/machine/.made: $(ARM64)/sysroot/.made | needs-arm64-machine
	@echo "unpacking Debian's kernel for arm64 (half a minute)"
	@rm -rf $(@D) $(ARM64)/kernel && mkdir -p $(@D) $(ARM64)/kernel
	@kernel=$$(apt-cache $(ARM64_APT) depends linux-image-cloud-arm64 | sed -n 's/.*Depends: //p') && \
	    cd $(ARM64)/kernel && apt-get $(ARM64_APT) download $$kernel busybox-static
	@for package in $(ARM64)/kernel/*.deb; do dpkg-deb --extract $$package $(@D) && rm $$package || exit 1; done
	@PATH=$$PATH:/usr/sbin:/sbin; depmod -b $(@D) $$(ls $(@D)/lib/modules)
	@touch $@

needs-demo: | needs-build
	@$(call need,$(DEMO_PACKAGES))

needs-test: $(FIREWALLD)/usr/sbin/firewalld $(REFERENCES)/debian/bridge | needs-build
	@$(call need,$(TEST_PACKAGES) $(FIREWALLD_PACKAGES))

# Unpacked, not installed: an installed firewalld would filter this machine's packets after the next boot, and podman
# prefers the reference plugins of /usr/lib/cni to podwire in /opt/cni/bin.
$(FIREWALLD)/usr/sbin/firewalld: | needs-build
	@$(call download,firewalld,$(FIREWALLD)) && dpkg-deb --extract *.deb . && rm *.deb

$(REFERENCES)/debian/bridge: | needs-build
	@$(call download,containernetworking-plugins,$(REFERENCES)/debian.files) && $(call end_reference,debian)
	@rm -r $(REFERENCES)/debian.files

# $(call download,PACKAGE,DIRECTORY): downloads a package of this machine's Debian, and stays in the directory.
define download
echo "unpacking $(1)"; mkdir -p $(2); $(APT_LOCK); cd $(2) && rm -f *.deb && { apt-get $(APT) download $(1) || \
    { apt-get $(APT) update && apt-get $(APT) download $(1); }; }
endef

# $(call end_reference,LINK): unpacks the downloaded plugins into a directory that is named for their version.
define end_reference
rm -rf files && dpkg-deb --extract *.deb files && version=$$(dpkg-deb --field *.deb Version | sed 's/^[0-9]*://; s/[-+~].*//') && \
    rm -rf $(REFERENCES)/$$version && mv files/usr/lib/cni $(REFERENCES)/$$version && ln -sfn $$version $(REFERENCES)/$(1) && \
    echo "REFERENCE=$(REFERENCES)/$$version"
endef

# If it is not available, the tests report it: as an error in CI, otherwise as a warning.
needs-second-kernel:
	-@$(call need,$(SECOND_KERNEL_PACKAGES))

needs-debian-kernel:
	@$(call need,$(DEBIAN_KERNEL_PACKAGES))
