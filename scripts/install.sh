#!/usr/bin/env bash
# make install: what was built in $B goes under $DESTDIR$PREFIX. A config file that is there is kept. Needs
# nothing but coreutils and sed, and Python to know where its packages go.
set -euo pipefail
cd "$(dirname "$0")/.."

: "${B:?the build folder}" "${PREFIX:?}" "${VERSION:?}"
PYTHON=${PYTHON:-python3}
root=${DESTDIR:-}$PREFIX
etc=$PREFIX/etc
[ "$PREFIX" != /usr ] || etc=/etc

put() { # mode, folder, file...
    local mode=$1 folder=$2
    shift 2
    install -d "$folder"
    install -m "$mode" "$@" "$folder/"
}

put 755 "$root/bin" "$B/bin/attnd" "$B/bin/attnctl"
put 644 "$root/include" "$B/include/attnd.h"
put 644 "$root/lib" "$B/lib/libattnd.a"
put 755 "$root/lib" "$B/lib/libattnd.so.0"
ln -sfn libattnd.so.0 "$root/lib/libattnd.so"

install -d "$root/lib/pkgconfig"
cat > "$root/lib/pkgconfig/attnd.pc" <<PC
prefix=$PREFIX
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: attnd
Description: Client of attnd, a standalone attention server
Version: $VERSION
Cflags: -I\${includedir}
Libs: -L\${libdir} -lattnd
Libs.private: -lprotobuf-c -pthread
PC

# Where this Python looks below PREFIX; a prefix it does not know gets the usual place and PYTHONPATH.
packages=$("$PYTHON" - "$PREFIX" <<'PY'
import site, sys
prefix = sys.argv[1]
known = [p for p in site.getsitepackages() if p.startswith(prefix.rstrip("/") + "/")]
print(known[0] if known else f"{prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")
PY
)
put 644 "${DESTDIR:-}$packages/attnd" "$B"/python/attnd/*.py "$B/python/attnd/attnd.desc"

put 644 "$root/share/attnd" proto/attnd.proto
put 644 "$root/share/doc/attnd" LICENSE README.md
[ ! -e proto/protocol.md ] || put 644 "$root/share/doc/attnd" proto/protocol.md
if [ -e "${DESTDIR:-}$etc/attnd/attnd.json" ]; then
    echo "install: $etc/attnd/attnd.json is there already: kept"
else
    put 644 "${DESTDIR:-}$etc/attnd" config/attnd.json
fi
put 644 "$root/share/attnd/presets" config/presets/*
put 644 "$root/share/attnd/cases" tests/cases/*
for page in "$B"/man/*; do
    [ ! -e "$page" ] || put 644 "$root/share/man/man${page##*.}" "$page"
done
[ -e "$B/man/attnd.8" ] || echo "install: no manual pages, they were not built"
completions=$root/share/bash-completion/completions
install -d "$completions"
"$B/bin/attnctl" completion bash > "$completions/attnctl"
chmod 644 "$completions/attnctl"
install -d "$root/lib/systemd/system"
sed -e "s,@PREFIX@,$PREFIX,g" -e "s,@ETC@,$etc,g" scripts/attnd.service > "$root/lib/systemd/system/attnd.service"
chmod 644 "$root/lib/systemd/system/attnd.service"

[ -n "${DESTDIR:-}" ] || ldconfig 2>/dev/null || true
echo "install: attnd $VERSION in ${DESTDIR:-}$PREFIX, its Python package in ${DESTDIR:-}$packages"
