#!/usr/bin/env bash
# make dist: the tree as build/attnd-VERSION.tar.gz, which builds and tests from itself. What git tracks, as it
# stands here; in an unpacked archive, what the archive had. The same tree gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

: "${VERSION:?}" "${COMMIT:?}" "${OUT:?the archive}"
name=attnd-$VERSION
list=$(mktemp)
home=$(mktemp -d)
trap 'rm -rf "$list" "$home"' EXIT

if [ -e .dist ]; then
    sed 1d .dist > "$list"
    date=$(stat -c %Y .dist)
else
    git ls-files | LC_ALL=C sort > "$list"
    date=$(git log -1 --format=%ct)
fi
# Its commit, and its files: an archive has no git to ask.
{ echo "$COMMIT"; cat "$list"; } > "$home/.dist"

mkdir -p "$(dirname "$OUT")"
tar --create --file="$home/archive.tar" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner \
    --mode=u+rwX,go+rX,go-w --mtime="@$date" --transform="s,^,$name/," --no-recursion \
    -C "$home" .dist -C "$PWD" --files-from="$list"
gzip -n -9 < "$home/archive.tar" > "$OUT"
echo "dist: $OUT, $(wc -l < "$list") files"
