"""test_dist.py: the archive is the same each time, and builds and works from itself."""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile

from support import ROOT

import tap

VERSION = "7.8.9"


def clean_env(**more):
    """Without what a make around this test has set."""
    made = ("MAKE", "MFLAGS", "ATTND_BUILD", "FLAVOUR")
    env = {name: value for name, value in os.environ.items() if not name.startswith(made)}
    return {**env, **more}


def run(*command, cwd, **env):
    done = subprocess.run(
        command, cwd=cwd, env=clean_env(**env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=500,
    )
    text = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{text[-4000:]}"
    return text


def dist(root, out, commit="0123456789"):
    run("scripts/dist.sh", cwd=root, VERSION=VERSION, COMMIT=commit, OUT=out)
    with open(out, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


@tap.test
def the_same_tree_gives_the_same_archive_without_what_is_built():
    with tempfile.TemporaryDirectory() as home:
        first, second = os.path.join(home, "a.tar.gz"), os.path.join(home, "b.tar.gz")
        tap.equal(dist(ROOT, first), dist(ROOT, second))
        with tarfile.open(first) as archive:
            members = archive.getmembers()
        names = [member.name for member in members]
        for name in ("Makefile", "README.md", "proto/attnd.proto", "tests/run.py", ".dist"):
            assert f"attnd-{VERSION}/{name}" in names, name
        for member in members:
            assert member.name.startswith(f"attnd-{VERSION}/"), member.name
            assert "/build/" not in member.name and "/.git/" not in member.name, member.name
            tap.equal((member.uid, member.gid), (0, 0))


@tap.test
def an_unpacked_archive_builds_works_and_packs_itself_again():
    with tempfile.TemporaryDirectory() as home:
        out = os.path.join(home, "attnd.tar.gz")
        digest = dist(ROOT, out)
        with tarfile.open(out) as archive:
            archive.extractall(home)
        tree = os.path.join(home, f"attnd-{VERSION}")
        # Unoptimised: what is shown is that nothing is missing.
        run("make", "-j2", "all", "CFLAGS=-O0", cwd=tree)
        says = run(os.path.join(tree, "build/release/bin/attnd"), "--version", cwd=home)
        assert re.match(r"attnd \S+ \(0123456789\)\n\Z", says), says
        run(sys.executable, "tests/e2e/test_readme.py", cwd=tree)
        assert "every file keeps to its room" in run("scripts/check_rooms.sh", cwd=tree)
        tap.equal(dist(tree, os.path.join(home, "again.tar.gz")), digest)


if __name__ == "__main__":
    tap.main()
