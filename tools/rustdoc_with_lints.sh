#!/usr/bin/env bash
# As RUSTDOC of `cargo test --doc`: runs the examples of a crate's documentation, and then rustdoc's lints over it. A
# `cargo doc` would need all dependencies compiled once more.
set -euo pipefail
rustdoc "$@"
arguments=()
is_test=
while [ $# -gt 0 ]; do
    case $1 in
    --test) is_test=yes ;;
    --test-run-directory | --test-args) shift ;;
    --test-run-directory=* | --test-args=*) ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
[ -n "$is_test" ] || exit 0
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
rustdoc "${arguments[@]}" -D warnings --out-dir "$directory"
