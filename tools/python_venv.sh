#!/usr/bin/env bash
# Makes .venv with what tests/requirements.txt names, unless it is there; or another directory with
# what another file names: tools/python_venv.sh [DIRECTORY REQUIREMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."
directory=${1:-.venv} requirements=${2:-tests/requirements.txt}
wanted=$(sha256sum "$requirements")
[ "$(cat "$directory/installed" 2>/dev/null)" = "$wanted" ] && exit 0
echo "installing $requirements into $directory for $(python3 --version)"
python3 -m venv --clear "$directory"
"$directory/bin/pip" install -q --disable-pip-version-check -r "$requirements"
echo "$wanted" >"$directory/installed"
