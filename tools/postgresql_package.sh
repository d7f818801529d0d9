#!/usr/bin/env bash
# Installs PostgreSQL's programs for the nightly tests. Debian's package would also make a server and start it, so it is
# told before not to. A machine that has PostgreSQL already stays as it is.
set -euo pipefail
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null && exit 0
if [ "$(id -u)" -eq 0 ]; then as_root=(); else as_root=(sudo -n); fi
settings=/etc/postgresql-common/createcluster.d
# Where that is not allowed, the last command says how to install the package.
"${as_root[@]}" mkdir -p $settings &&
    echo 'create_main_cluster = false' | "${as_root[@]}" tee $settings/atoll-tests.conf >/dev/null || true
"$(dirname "$0")/packages.sh" postgresql
