"""test_install.py: what make install puts down works from there, in C and in Python."""

import json
import os
import re
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
            ("share/attnd/presets/llama-3-8b.json", 0o644),
            ("share/attnd/cases/b001_poison_short_rows.json", 0o644),
            ("share/attnd/cases/format.md", 0o644),
            ("share/bash-completion/completions/attnctl", 0o644),
            ("lib/systemd/system/attnd.service", 0o644),
        ):
            tap.equal((name, os.stat(at.path(name)).st_mode & 0o777), (name, mode))
        tap.equal(os.readlink(at.path("lib/libattnd.so")), "libattnd.so.0")
        with open(at.path("lib/pkgconfig/attnd.pc"), encoding="utf-8") as file:
            assert "Version: 1.2.3\n" in file.read()
        run(at.path("bin/attnctl"), "version")
        run(at.path("bin/attnd"), "--check-config", at.path("etc/attnd/attnd.json"))
        # Nothing lies beside the prefix.
        tap.equal(os.listdir(at.dest), [PREFIX.split("/")[1]])


def words_of(at, page):
    """A manual page as the words people read."""
    path = at.path("share/man", f"man{page[-1]}", page)
    if not os.path.exists(path):
        raise tap.Skip("scdoc is not installed: no manual pages were built")
    tap.equal(os.stat(path).st_mode & 0o777, 0o644)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for markup, plain in (("\\-", "-"), ("\\(aq", "'"), ("\\fB", " "), ("\\fR", " "), ("\\fI", " "),
                          ("\\e", "\\"), ("\\&", "")):
        text = text.replace(markup, plain)
    return text.split()


@tap.test
def manual_pages_say_every_key_and_every_command():
    with Installed() as at:
        conf, ctl = words_of(at, "attnd.conf.5"), words_of(at, "attnctl.1")
        for page in ("attnd.8", "attnd-protocol.7"):
            assert len(words_of(at, page)) > 100
        keys = re.findall(r"^  --([a-z_]+\.[a-z_]+)=", run(at.path("bin/attnd"), "--help"), re.M)
        assert len(keys) > 20
        for key in keys:
            assert key in conf, key
        part = run(at.path("bin/attnctl"), "--help").split("Commands:\n")[1].split("\n\n")[0]
        commands = [line.split()[0] for line in part.splitlines()]
        assert len(commands) > 15
        for command in commands:
            assert command in ctl, command
        for words in (conf, ctl):
            assert not any(word.startswith("@") for word in words), "a mark was left in"


@tap.test
def the_unit_names_what_was_installed():
    with Installed() as at:
        with open(at.path("lib/systemd/system/attnd.service"), encoding="utf-8") as file:
            text = file.read()
        unit = dict(re.findall(r"^(\w+)=(.*)$", text, re.M))
        tap.equal(unit["Type"], "notify")
        tap.equal(unit["ExecStart"], f"{PREFIX}/bin/attnd --config {PREFIX}/etc/attnd/attnd.json")
        for word in unit["ExecStart"].split():
            if word.startswith("/"):
                assert os.path.exists(at.dest + word), word
        tap.equal(unit["RuntimeDirectoryMode"], "0700")
        tap.equal(unit["RestartPreventExitStatus"], "64 78")
        assert "@" not in text


@tap.test
def completions_are_those_of_the_program():
    with Installed() as at:
        path = at.path("share/bash-completion/completions/attnctl")
        with open(path, encoding="utf-8") as file:
            tap.equal(file.read(), run(at.path("bin/attnctl"), "completion", "bash"))
        run("bash", "-n", path)


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
