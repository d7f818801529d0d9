# The commands of the README and of CONTRIBUTING. Everything else is cargo's.

SHELL := /bin/bash
DATA ?= ./atoll-data
# The cargo profile of `make test`, which builds more quickly than release: dependencies are built once for tests,
# clippy and the program.
PROFILE ?= ci
# Python, boto3 and aws of the tests; tests of crates find them here, too.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
PYTEST := .venv/bin/python -m pytest
# Compilation for tests. Clippy's lints come with it: a compilation of their own would have all dependencies once more.
# The allocator is Debian's build of jemalloc, because to compile it takes two minutes.
TEST_CARGO = RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__ \
	JEMALLOC_OVERRIDE=$$(echo /usr/lib/*/libjemalloc_pic.a) cargo
# Scenarios side by side: each module is one worker's. What fails runs again, alone, after the others.
SIDE_BY_SIDE := --numprocesses 3 --dist loadfile --no-loadscope-reorder --second-runs

.PHONY: demo build lab dist sbom advisories fuzz check style test nightly packages test-packages nightly-packages venv lint unit crate-tests lib-tests doc-tests transit-tests binary e2e chaos campaign guard mutations

# What the build needs, on a fresh Debian 12.
packages:
	@tools/packages.sh protobuf-compiler libprotobuf-dev nasm cmake pkg-config gcc g++ libc6-dev

# What the tests use besides: the real clients and the real etcd.
test-packages: packages
	@tools/packages.sh etcd-server etcd-client fio libnbd-bin qemu-utils e2fsprogs rclone restic curl openssl haproxy iproute2 nftables cryptsetup-bin fdisk mount tcpdump jq socat zstd prometheus chromium chromium-driver libjemalloc-dev python3 python3-venv libfabric-dev nvme-cli gdb

# What the slow end-to-end tests use besides.
nightly-packages: test-packages
	@tools/packages.sh xfsprogs qemu-system-x86 busybox-static ibverbs-providers librdmacm1
	@tools/postgresql_package.sh
	@tools/guest_kernel.sh
	@tools/guest_tls.sh

# Python packages of the tests and tools, in .venv.
venv: test-packages
	@tools/python_venv.sh

build: packages
	cargo build --release -p atoll

# The program of atoll bench run, guard, model, report and compare, and of atoll sim.
lab: build
	cargo build --release -p atoll-lab

# A package for others, in target/package: it takes 16 to 40 minutes to build, and less CPU to run.
dist: packages
	@tools/packages.sh zstd
	@tools/dist.sh

# A bill of materials of the program: every crate in it, with version, licence and checksum.
sbom:
	@mkdir -p target
	tools/sbom.py > target/sbom.json
	tools/sbom.py --check target/sbom.json

# Licences, sources, and advisories, of which the list comes over the network. cargo install cargo-deny --locked
advisories:
	@tools/check_actions.py
	cargo deny --locked check --hide-inclusion-graph

# Fuzzing of one target for so many minutes, with another seed in each round: make fuzz TARGET=s3 MINUTES=30
TARGET ?= s3
fuzz:
	@tools/fuzz.py $(TARGET) --minutes $(MINUTES) --profile $(PROFILE)

demo: build
	@echo "Examples below use 'atoll': export PATH=$(CURDIR)/target/release:\$$PATH"
	@exec target/release/atoll up --data $(DATA)

# Formatting, clippy and unit tests of the packages that have changed since the last commit, or since BASE=COMMIT.
check:
	@tools/python_venv.sh
	@tools/check_changed.py

# What needs no compilation.
style: venv
	@tools/check_mutations.py
	@tools/check_dependencies.py
	@tools/check_actions.py
	@tools/check_licences.sh
	.venv/bin/ruff format --check -q tests tools crates
	.venv/bin/ruff check -q tests tools crates
	@tools/function_lengths.py tests tools/*.py crates
	@tools/module_circles.py
	@tools/rust_shapes.py
	cargo fmt --all --check
	@tools/check_docs.py
	@tools/source_words.py
	@tools/check_claims.py
	$(PYTEST) -q tests/tools
	@tools/api_reference.py --check
	@tools/check_monitoring.py

# All of it before a commit, without what `make test` compiles.
lint: style
	cargo clippy --profile $(PROFILE) --workspace --all-targets -q -- -D warnings
	cargo test --profile $(PROFILE) -q -p atoll-types -p atoll-wire --lib the_page_has_the_table
	RUSTDOCFLAGS="-D warnings" cargo doc --profile $(PROFILE) --workspace --exclude atoll --no-deps -q

# Many of these tests wait; the binary of the end-to-end tests is built meanwhile.
unit: venv
	$(TEST_CARGO) test --profile $(PROFILE) --workspace --all-targets -q --no-run
	@$(MAKE) --no-print-directory --jobs --output-sync crate-tests lib-tests doc-tests transit-tests binary

# More at once than there are processors, because most of them wait.
crate-tests:
	RUST_TEST_THREADS=4 $(TEST_CARGO) test --profile $(PROFILE) --workspace -q --test '*'

lib-tests:
	$(TEST_CARGO) test --profile $(PROFILE) --workspace -q --lib --bins

doc-tests:
	RUSTDOC=$(CURDIR)/tools/rustdoc_with_lints.sh $(TEST_CARGO) test --profile $(PROFILE) --workspace -q --doc

transit-tests:
	$(PYTEST) -q tests/transit

# Tests that look at clocks go first.
binary: test-packages
	@nice env $(TEST_CARGO) build --profile $(PROFILE) -p atoll -p atoll-lab

e2e: venv binary
	@tools/command_reference.py target/$(PROFILE)/atoll --check
	$(PYTEST) $(SIDE_BY_SIDE) --atoll=target/$(PROFILE)/atoll

test: venv style unit e2e s3-tests-check

# make test, the slow scenarios, a random order of the scenarios that allow it, chaos, and longer campaigns.
nightly: test nightly-packages
	$(PYTEST) $(SIDE_BY_SIDE) --atoll=target/$(PROFILE)/atoll -m nightly
	$(PYTEST) $(SIDE_BY_SIDE) --atoll=target/$(PROFILE)/atoll -m any_order --shuffle=$$(date +%s)
	@$(MAKE) --no-print-directory chaos
	@$(MAKE) --no-print-directory campaign
	@$(MAKE) --no-print-directory guard

# CPU per operation of the release against the recorded budget, on a machine that does nothing else.
guard: lab
	target/release/atoll bench guard

# A real cluster under sixteen writers and all kinds of faults, for so many minutes; everything that was acknowledged is
# compared: make chaos MINUTES=60
MINUTES ?= 5
chaos: venv binary
	.venv/bin/python tests/chaos/chaos.py --atoll target/$(PROFILE)/atoll --minutes $(MINUTES)

# Longer campaigns; the page about testing describes them.
campaign: test-packages
	ATOLL_CRASH_POINTS=100000 cargo test --release -p atoll-store --test store crash -- --nocapture
	ATOLL_DAMAGE_RUNS=200 ATOLL_FUZZ_RUNS=10000000 cargo test --release -q -p atoll-store --test store -- damage fuzz
	ATOLL_FUZZ_RUNS=1000000 cargo test --release -q -p atoll-s3 --lib -- fuzz
	ATOLL_FUZZ_RUNS=1000000 cargo test --release -q -p atoll-image --lib -- fuzz
	ATOLL_SIM_RUNS=50000 ATOLL_SIM_ONCE=1 cargo test --release -p atoll-sim --test seeds -- --nocapture
	ATOLL_SIM_RUNS=1200 cargo test --release -p atoll-sim --test full -- --nocapture
	ATOLL_IMAGE_SEEDS=10000 cargo test --release -q -p atoll-image histories
	ATOLL_CONFORMANCE_SEEDS=50 cargo test --release -q -p atoll-cluster --test conformance

# ceph/s3-tests from a checkout, against a cluster of its own: make s3-tests SUITE=PATH
SUITE ?= ../s3-tests
.PHONY: s3-tests s3-tests-check
s3-tests: venv binary
	@test -d "$(SUITE)" || { echo "name a checkout: git clone https://github.com/ceph/s3-tests; make s3-tests SUITE=s3-tests" >&2; exit 1; }
	@tools/python_venv.sh .venv-s3-tests tests/s3_tests_requirements.txt
	.venv/bin/python tools/s3_tests.py --atoll target/$(PROFILE)/atoll --suite $(SUITE)

# What passes of it has to go on passing. The suite is in no package registry, so it is not there everywhere.
s3-tests-check: venv binary
	@if test -d "$(SUITE)"; then \
		tools/python_venv.sh .venv-s3-tests tests/s3_tests_requirements.txt && \
		.venv/bin/python tools/s3_tests.py --atoll target/$(PROFILE)/atoll --suite $(SUITE) --check; \
	else echo "ceph/s3-tests is not checked: there is no checkout at $(SUITE) (make test SUITE=PATH)"; fi

# Puts deliberate bugs into a copy of the store and of the group protocol, one after the other: some
# test or seed must notice each.
mutations:
	tools/store_mutations.py
	tools/pg_mutations.py

# The book, in docs/book.
.PHONY: docs
docs:
	@command -v mdbook >/dev/null || { echo "mdBook is not installed: cargo install mdbook --locked" >&2; exit 1; }
	mdbook build docs
