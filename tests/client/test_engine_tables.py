"""The tables of engines' options, against the clients that are installed, and docker's own examples."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.containers.commandline import read
from gpulease.containers.flags import ENGINES, Flag, Table, table_from_help, tables_of
from gpulease.containers.wanted import our_flags

INSTALLED = [name for name in ("docker", "podman") if shutil.which(name)]


def helped(*words: str) -> Table:
    """What the installed client lists, without asking a daemon what that one lacks."""
    environment = {**os.environ, "DOCKER_HOST": "unix:///no/such.sock"}
    return table_from_help(
        subprocess.run(
            [*words, "--help"], env=environment, capture_output=True, text=True, check=False
        ).stdout
    )


@pytest.mark.parametrize("name", INSTALLED)
def test_tables_are_the_clients(name: str) -> None:
    """Each option that the installed client lists is in our table, with the same need of a value."""
    tables = tables_of(name)
    for table, words in (
        (tables.before, [name]),
        (tables.run, [name, "run"]),
        (tables.run, [name, "create"]),
        (tables.pull, [name, "pull"]),
    ):
        listed = helped(*words).flags
        assert len(listed) > 3
        for flag in listed:
            assert flag.name == "--help" or table.find(flag.name) == flag
            assert flag.short is None or table.find(flag.short) == flag


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        (name, flag)
        for name in INSTALLED
        for flag in ("--net", "--net-alias", "--gpus", "--healthcheck-timeout")
    ],
)
def test_hidden_options(name: str, flag: str) -> None:
    """Of what a client does not list, our table has what it knows."""
    done = subprocess.run([name, "run", flag], capture_output=True, text=True, check=False)
    known = tables_of(name).run.find(flag)
    assert (known is not None) == ("needs an argument" in done.stderr)


@pytest.mark.parametrize("name", ENGINES)
def test_tables_are_sound(name: str) -> None:
    """No name is there twice with another meaning, and what tells us something needs or needs no value."""
    run = tables_of(name).run
    for flag in (Flag("--env", "-e", True), Flag("--privileged", None, False), Flag("--volume", "-v", True)):
        assert run.find(flag.name) == flag
    by_short = [flag.short for flag in run.flags if flag.short and run.find(flag.short) == flag]
    assert len(by_short) == len(set(by_short))


# From docker's reference of `docker container run`, and its pages on resources, volumes, networks and logs.
EXAMPLES = """
--name test -d nginx:alpine
--rm -it busybox top
--cidfile /tmp/docker_test.cid ubuntu echo test
--rm -it --pid=container:my_redis debian strace -p 1
--uts=host ubuntu hostname
-w /path/to/dir/ ubuntu pwd
-it --storage-opt size=120G fedora /bin/bash
-d --tmpfs /run:rw,noexec,nosuid,size=65536k my_image
--read-only -v /icanwrite busybox touch /icanwrite/here
-t -i -v /srv/docker-root:/usr/bin/data busybox
--mount type=volume,target=/icanwrite busybox touch /icanwrite/here
-t -i --mount type=bind,src=/data,dst=/data busybox sh
-p 127.0.0.1:80:8080/tcp nginx:alpine
-p 8080-9000:80/udp nginx
--expose 80 nginx:alpine
-P nginx:alpine
--pull always hello-world
-e MYVAR1 --env MYVAR2=foo --env-file ./env.list ubuntu bash
-l my-label --label com.example.foo=bar ubuntu bash
--label-file ./labels ubuntu bash
-itd --network=my-net busybox
-itd --network=my-net --ip=10.10.9.75 busybox
-itd --network=name=my-net,driver-opt=com.docker.network.endpoint.sysctls=a busybox
-a stdin -a stdout -i -t ubuntu /bin/bash
--device=/dev/sdc:/dev/xvdc ubuntu ls -l /dev/xvdc
--device-read-bps=/dev/sda:1mb ubuntu
--restart=no redis
--add-host=my-hostname=8.8.8.8 alpine ping -c 1 my-hostname
--ulimit nofile=1024:1024 --rm debian sh -c "ulimit -n"
--security-opt label=level:s0:c100,c200 -it fedora bash
--sysctl net.ipv4.ip_forward=1 someimage
--stop-signal SIGKILL --stop-timeout=100 redis
--shm-size=1g --memory 300M --memory-swap=1G -m500m --cpus=".5" ubuntu
--cpuset-cpus="1,3" --cpuset-mems 0-2 -c 512 --blkio-weight 300 ubuntu:24.04 /bin/bash
--log-driver=syslog --log-opt syslog-address=udp://1.2.3.4:1111 alpine echo hello
--health-cmd='stat /etc/passwd || exit 1' --health-interval=2s --no-healthcheck=false busybox sleep 1d
--user 1000:1000 --group-add audio --entrypoint /bin/bash -h box -- debian -c "echo --vram"
--detach-keys "ctrl-p,ctrl-q" --sig-proxy=false -id --init --oom-kill-disable=false ubuntu
--annotation a=b --cgroupns private --pids-limit -1 --isolation default --ipc=shareable alpine
--dns 1.1.1.1 --dns-search example.com --dns-option use-vc --domainname d --mac-address 92:d0:c6:0a:29:33 a
""".strip().splitlines()


@pytest.mark.parametrize("words", EXAMPLES)
def test_dockers_examples(words: str) -> None:
    """Each example of docker's own reference passes unchanged, with ours among it."""
    given_words = ["run", *shlex.split(words)]
    for ours in ([], ["--vram", "8G", "--lease-gpus=2"]):
        line = read("docker", ["run", *ours, *given_words[1:]], tables_of("docker"), our_flags())
        assert line.engine_words() == ["docker", *given_words]
        assert [f"{one.name}={one.value}" for one in line.ours] == (
            ["--vram=8G", "--lease-gpus=2"] if ours else []
        )


FLAGS = [flag for flag in tables_of("docker").run.flags if flag.name != "--help"]
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@st.composite
def spelled(draw: st.DrawFn) -> list[str]:
    """One of docker's options, in one of the ways in which it may be written."""
    flag = draw(st.sampled_from(FLAGS))
    if not flag.takes_value:
        short = [[flag.short], [f"{flag.short}=false"]] if flag.short else []
        return draw(st.sampled_from([[flag.name], [f"{flag.name}=true"], *short]))
    value = draw(VALUES)
    ways = [[flag.name, value], [f"{flag.name}={value}"]]
    if flag.short:
        ways += [
            [flag.short, value],
            *([[f"{flag.short}{value}"], [f"-it{flag.short[1]}{value}"]] if value else []),
        ]
    return draw(st.sampled_from(ways))


@given(
    st.lists(spelled(), max_size=12),
    st.lists(st.integers(0, 12), max_size=3),
    st.sampled_from([[], ["--"]]),
    st.text("abc/:1", min_size=1),
    st.lists(VALUES),
)
def test_nothing_of_the_users_changes(
    options: list[list[str]], ours_at: list[int], end: list[str], image: str, words: list[str]
) -> None:
    """Whatever docker's options are, they keep their order, and what follows the image keeps every byte."""
    theirs = [word for option in options for word in option]
    mixed = [list(option) for option in options]
    for at in sorted(ours_at, reverse=True):
        mixed.insert(at, ["--vram", "1G"])
    given_words = [word for option in mixed for word in option]
    line = read("docker", ["run", *given_words, *end, image, *words], tables_of("docker"), our_flags())
    assert line.engine_words("--added") == ["docker", "run", *theirs, "--added", *end, image, *words]
    assert (line.image, list(line.words_of_container)) == (image, words)
    assert len(line.ours) == len(ours_at)
