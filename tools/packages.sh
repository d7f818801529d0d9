#!/usr/bin/env bash
# Installs the Debian packages that are missing, or says how where it may not.
set -euo pipefail
missing=()
for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
install=(apt-get install -y --no-install-recommends "${missing[@]}")
if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true 2>/dev/null; then
        install=(sudo "${install[@]}")
    else
        echo "Atoll needs Debian packages that are not installed. Run:" >&2
        echo "    sudo apt-get update && sudo ${install[*]}" >&2
        exit 1
    fi
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
if [ "${install[0]}" = sudo ]; then sudo apt-get update -qq; else apt-get update -qq; fi
"${install[@]}" >/dev/null
