#!/usr/bin/env bash
# Installs the Python packages that are missing for python3: those that Debian 12 has are too old
# for the S3 features that the tests use.
set -euo pipefail
missing=()
for package in "$@"; do
    python3 -m pip show -q "$package" >/dev/null 2>&1 || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "installing ${missing[*]} for $(python3 --version)"
python3 -m pip install -q --break-system-packages "${missing[@]}" 2>/dev/null || python3 -m pip install -q "${missing[@]}"
