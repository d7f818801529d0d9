#!/usr/bin/env bash
# Makes .venv with what tests/requirements.txt names, unless it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=$(sha256sum tests/requirements.txt)
[ "$(cat .venv/installed 2>/dev/null)" = "$wanted" ] && exit 0
echo "installing tests/requirements.txt into .venv for $(python3 --version)"
python3 -m venv --clear .venv
.venv/bin/pip install -q --disable-pip-version-check -r tests/requirements.txt
echo "$wanted" >.venv/installed
