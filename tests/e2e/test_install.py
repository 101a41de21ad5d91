"""test_install.py: what make install puts down works from there, in C and in Python."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from support import BUILD, ROOT, Daemon

import tap

PREFIX = "/opt/attnd"
PROGRAM = r"""
#include <attnd.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    attnd_client *client;
    attnd_err err;
    if (attnd_connect(&client, argv[1], "installed", 0, &err) != ATTND_OK)
        return fprintf(stderr, "%s\n", err.text), 1;
    attnd_status status = attnd_ping(client, 0, &err);
    attnd_close(client);
    return status;
}
"""


class Installed:
    """A DESTDIR with everything in it."""

    def __enter__(self):
        self.dest = tempfile.mkdtemp(prefix="attnd-install-")
        self.output = self.install()
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dest)

    def install(self):
        env = dict(
            os.environ,
            B=BUILD,
            PREFIX=PREFIX,
            DESTDIR=self.dest,
            VERSION="1.2.3",
            PYTHON=sys.executable,
        )
        return run(os.path.join(ROOT, "scripts", "install.sh"), env=env)

    def path(self, *below):
        return os.path.join(self.dest, PREFIX.lstrip("/"), *below)


def run(*command, env=None):
    done = subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    text = done.stdout.decode()
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{text}"
    return text


@tap.test
def every_file_has_its_place_and_its_mode():
    with Installed() as at:
        for name, mode in (
            ("bin/attnd", 0o755),
            ("bin/attnctl", 0o755),
            ("include/attnd.h", 0o644),
            ("lib/libattnd.a", 0o644),
            ("lib/libattnd.so.0", 0o755),
            ("lib/pkgconfig/attnd.pc", 0o644),
            ("share/attnd/attnd.proto", 0o644),
            ("share/doc/attnd/LICENSE", 0o644),
            ("etc/attnd/attnd.json", 0o644),
        ):
            tap.equal((name, os.stat(at.path(name)).st_mode & 0o777), (name, mode))
        tap.equal(os.readlink(at.path("lib/libattnd.so")), "libattnd.so.0")
        with open(at.path("lib/pkgconfig/attnd.pc"), encoding="utf-8") as file:
            assert "Version: 1.2.3\n" in file.read()
        run(at.path("bin/attnctl"), "version")
        run(at.path("bin/attnd"), "--check-config", at.path("etc/attnd/attnd.json"))
        # Nothing lies beside the prefix.
        tap.equal(os.listdir(at.dest), [PREFIX.split("/")[1]])


@tap.test
def a_config_file_that_was_changed_is_kept():
    with Installed() as at:
        path = at.path("etc/attnd/attnd.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write("{}\n")
        assert "attnd.json is there already: kept" in at.install()
        with open(path, encoding="utf-8") as file:
            tap.equal(file.read(), "{}\n")


@tap.test
def a_c_program_builds_against_it_and_talks():
    if "asan" in BUILD:
        raise tap.Skip("a sanitized library needs a sanitized program")
    with Installed() as at, Daemon() as daemon:
        source, program = os.path.join(at.dest, "x.c"), os.path.join(at.dest, "x")
        with open(source, "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        env = dict(
            os.environ, PKG_CONFIG_PATH=at.path("lib/pkgconfig"), PKG_CONFIG_SYSROOT_DIR=at.dest
        )
        flags = run("pkg-config", "--cflags", "--libs", "attnd", env=env).split()
        run("gcc", "-Wall", "-Werror", source, "-o", program, *flags)
        run(program, daemon.dir, env=dict(os.environ, LD_LIBRARY_PATH=at.path("lib")))
        tap.equal(daemon.rpc("stats.get")["counters"]["sessions_opened"], 1)


@tap.test
def the_python_package_is_whole():
    with Installed() as at, Daemon() as daemon:
        packages = os.path.dirname(os.path.dirname(find(at.dest, "attnd.desc")))
        code = (
            "import attnd, json, sys\n"
            "with attnd.Client(sys.argv[1]) as c: c.ping()\n"
            "print(json.dumps(attnd.__file__))"
        )
        out = run(sys.executable, "-c", code, daemon.dir, env=dict(os.environ, PYTHONPATH=packages))
        assert json.loads(out).startswith(packages), out


def find(top, name):
    for folder, _, files in os.walk(top):
        if name in files:
            return os.path.join(folder, name)
    raise AssertionError(f"{top} has no {name}")


if __name__ == "__main__":
    tap.main()
