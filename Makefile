# The two commands of the README: `make demo` and `make test`. Everything else is cargo's.

SHELL := /bin/bash
DATA ?= ./atoll-data

.PHONY: demo test build packages test-packages lint unit rust-tests transit-tests binary e2e campaign mutations

# What the build needs, on a fresh Debian 12.
packages:
	@tools/packages.sh protobuf-compiler libprotobuf-dev nasm cmake pkg-config gcc g++ libc6-dev

# What the tests use besides: the real clients and the real etcd.
test-packages: packages
	@tools/packages.sh etcd-server etcd-client fio libnbd-bin qemu-utils e2fsprogs rclone curl openssl haproxy iproute2 nftables cryptsetup-bin fdisk mount tcpdump python3 python3-pip
	@tools/python_packages.sh boto3 awscli

build: packages
	cargo build --release -p atoll

demo: build
	@echo "Examples below use 'atoll': export PATH=$(CURDIR)/target/release:\$$PATH"
	@exec target/release/atoll up --data $(DATA)

lint:
	@tools/check_mutations.py
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets -q -- -D warnings

# Many of these tests wait; the binary of the end-to-end tests is built meanwhile.
unit: test-packages
	cargo test --release --workspace -q --no-run
	@$(MAKE) --no-print-directory --jobs --output-sync rust-tests transit-tests binary

rust-tests:
	cargo test --release --workspace -q

transit-tests:
	python3 tests/transit/test_transit_server.py
	python3 tests/transit/test_transit_failures.py

# Tests that look at clocks go first.
binary:
	@nice $(MAKE) --no-print-directory build

e2e: test-packages binary
	python3 tests/e2e/run.py --atoll target/release/atoll --quick --jobs 2

test: test-packages lint unit e2e

# Longer campaigns; docs/testing.md describes them.
campaign: test-packages
	ATOLL_CRASH_POINTS=100000 cargo test --release -p atoll-store --test store crash -- --nocapture
	ATOLL_DAMAGE_RUNS=200 ATOLL_FUZZ_RUNS=10000000 cargo test --release -q -p atoll-store --test store -- damage fuzz
	ATOLL_SIM_RUNS=50000 ATOLL_SIM_ONCE=1 cargo test --release -p atoll-sim --test seeds -- --nocapture
	ATOLL_CONFORMANCE_SEEDS=50 cargo test --release -q -p atoll-cluster --test conformance

# Puts deliberate bugs into a copy of the store and of the group protocol, one after the other: some
# test or seed must notice each.
mutations:
	tools/store_mutations.py
	tools/pg_mutations.py
