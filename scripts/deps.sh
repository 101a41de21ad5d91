#!/usr/bin/env bash
# Installs what building, testing and the demo need, and nothing that is there already. Debian 12; the
# names are the same on Ubuntu 24.04. As root, or with sudo. Packages named as arguments are wanted too:
# those that few targets need.
set -euo pipefail

packages=(
    gcc libc6-dev make git pkg-config
    libuv1-dev libnng-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler libcjson-dev
    libcmocka-dev uthash-dev libmicrohttpd-dev scdoc
    python3 python3-numpy python3-protobuf
    socat jq
    "$@"
)

missing=()
for p in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$p" 2>/dev/null | cut -c1-2)" = ii ] || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo "deps: missing packages: ${missing[*]}" >&2
        echo "deps: run this as root or install sudo" >&2
        exit 1
    }
    as_root=(sudo)
fi
echo "deps: installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
