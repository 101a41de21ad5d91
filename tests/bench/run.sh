#!/bin/sh
# Runs every bench of $ATTND_BUILD/bench, one after the other: run.sh [part of a name]
set -eu
for bench in "${ATTND_BUILD:?the build folder}"/bench/*; do
    "$bench" "${1-}"
done
