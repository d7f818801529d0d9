#!/usr/bin/env bash
# What of `cargo deny` needs no network: licences, sources, and crates that must not be there. Where cargo-deny is not
# installed this says so, and the workflow checks it; advisories are of `make advisories`.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v cargo-deny > /dev/null; then
    echo "licences are not checked: cargo-deny is not installed (cargo install cargo-deny --locked)"
    exit 0
fi
cargo deny --locked --offline check --hide-inclusion-graph bans licenses sources
