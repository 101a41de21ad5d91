#!/usr/bin/env bash
# nvcc.sh NVCC ARGS…: compiles, quietly; a kernel that spills or
# serialises its matrix instructions (C75xx) is an error and is named.
set -uo pipefail
log=$("$@" 2>&1)
status=$?
bad=$(grep -E 'error|warning|C75[0-9][0-9]|[1-9][0-9]* bytes spill' <<<"$log")
if [ $status -ne 0 ] || [ -n "$bad" ]; then
    printf '%s\n' "$log" | grep -E "error|warning|C75|spill|Compiling" >&2
    exit 1
fi
