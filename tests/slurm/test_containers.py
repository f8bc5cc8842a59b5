"""Containers in a job: with the options of docs/slurm.md the hook holds them, and without does not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hook.userland import cache

from .agent import ServedAgent
from .cluster import Cluster
from .containers.image import make_image
from .lab import Lab
from .settings import USERS
from .space import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.hook]
JOB = ("--partition=pair", "--nodelist=gpu1", "--gres=shard:1")
HELD = ["allocated", "denied"]
NOT_HELD = ["allocated", "allocated"]
NOTHING = ["denied", "denied"]
# These words are in docs/slurm.md.
LIBRARY = "hook=${LD_PRELOAD%%:*}"
CHARLIECLOUD = (
    "ch-run --bind=/run/nodeagent/hook",
    '--bind="${hook%/*}:/mnt/0" --set-env="LD_PRELOAD=/mnt/0/${hook##*/}"',
)
PODMAN = (
    "--env-host",
    '--env="LD_PRELOAD=/mnt/0/${hook##*/}"',
    '--volume=/run/nodeagent/hook:/run/nodeagent/hook --volume="${hook%/*}:/mnt/0"',
)
# The plugin's files name the library where it is on the node.
PLUGINS_FILES = '--bind=/etc/gpulease --bind=/etc/ld.so.preload --bind="${hook%/*}"'
ROOTLESS_PODMAN = (Path(__file__).parent / "containers/rootless-podman").read_text()


def charliecloud(*options: str) -> str:
    """A script that starts the image and command given to it; the options are in a shell's words."""
    return f'{LIBRARY}\n{" ".join(options)} "$@"\n'


def podman(*options: str) -> str:
    return f'{LIBRARY}\nset -- {" ".join(options)} --rootfs "$@"\n{ROOTLESS_PODMAN}'


@dataclass(frozen=True)
class Image:
    """An image, and the GPU that programs in it are to take VRAM of."""

    lab: Lab
    path: Path
    gpu: int
    share: int

    def take(self, script: str, program: str = "glibc", *, end: str = "--") -> tuple[list[str], str]:
        """What a job of one shard gets that asks for half its share, then for a whole one; and its stderr.

        *end*: what ends the runtime's own options.
        """
        sizes = (str(self.share // 2), str(self.share))
        words = (str(self.path), *end.split(), f"/bin/{program}", str(self.gpu), *sizes)
        done = self.lab.cluster.srun(*JOB, "/bin/sh", "-c", script, "sh", *words, env={"USER": "alice"})
        assert done.returncode == 0, done.stderr
        return done.stdout.split(), done.stderr

    def take_by_podman(self, *options: str) -> list[str]:
        return self.take(podman(*options), end="")[0]


@pytest.fixture
def make(lab: Lab, fake: ServedAgent) -> Iterator[Callable[[Path], Image]]:
    """Makes an image of the C libraries of a root."""
    if shutil.which("ch-run") is None:
        pytest.skip("needs ch-run: make test-slurm installs charliecloud")
    path = lab.cluster.directory / "image"

    def made(root: Path) -> Image:
        make_image(path, USERS["alice"], root)
        device = fake.call("GET", "/v1/devices")["devices"][0]
        return Image(lab, path, device["gpu_id"], device["grantable_bytes"] // 8)

    yield made
    shutil.rmtree(path)


@pytest.fixture
def image(make: Callable[[Path], Image]) -> Image:
    """An image of this machine's C libraries."""
    return make(Path("/"))


def test_the_page_has_these_options() -> None:
    """What is tried here is what docs/slurm.md says."""
    page = (ROOT / "docs/slurm.md").read_text()
    assert [words for words in (LIBRARY, *CHARLIECLOUD, *PODMAN, PLUGINS_FILES) if words not in page] == []


@pytest.mark.way_out(
    "a container in a Slurm job, with the options of docs/slurm.md (Charliecloud)",
    tier="hook",
    outcome="refused over the limit: glibc, and musl",
)
@pytest.mark.parametrize("program", ["glibc", "musl"])
def test_a_container_is_held(image: Image, program: str) -> None:
    """With the library and the lease's files in it, a container gets half its share and no whole one more."""
    assert image.take(charliecloud(*CHARLIECLOUD), program)[0] == HELD


@pytest.mark.way_out(
    "a container of an old image in a Slurm job, with these options",
    tier="hook",
    outcome="refused over the limit: glibc 2.31, and musl 1.2.2",
)
@pytest.mark.parametrize("program", ["glibc", "musl"])
def test_an_old_image_is_held(make: Callable[[Path], Image], program: str) -> None:
    """The same in an image of Debian 11, with glibc 2.31 and musl 1.2.2."""
    if not (cache() / "bullseye").exists():
        pytest.skip("needs the root of an old release: make userlands")
    assert make(cache() / "bullseye").take(charliecloud(*CHARLIECLOUD), program)[0] == HELD


@pytest.mark.way_out(
    "a container in a Slurm job, without any of these options",
    tier="hook",
    outcome="not held: the library is not there. glibc says so on stderr, and musl nothing",
)
@pytest.mark.parametrize(("program", "warned"), [("glibc", True), ("musl", False)])
def test_a_container_without_the_library_is_not_held(image: Image, program: str, warned: bool) -> None:
    """The environment names a library that the image does not have, nor /tmp, where a checkout may lie."""
    got, said = image.take(charliecloud("ch-run --private-tmp"), program)
    assert got == NOT_HELD
    assert ("cannot be preloaded" in said) == warned


@pytest.mark.way_out(
    "a container in a Slurm job that has the library and not the lease's files",
    tier="hook",
    outcome="no VRAM is granted",
)
def test_a_container_without_the_files_gets_nothing(image: Image) -> None:
    """Only the library is mounted: nothing is granted, and stderr says why."""
    got, said = image.take(charliecloud("ch-run", CHARLIECLOUD[1]))
    assert got == NOTHING
    assert "the lease's limits are not there" in said


@pytest.mark.way_out(
    "a container in a Slurm job whose environment is dropped: `--unset-env`, as `--cleanenv` elsewhere",
    tier="hook",
    outcome="not held: the hook is not loaded",
)
def test_a_container_without_the_environment_is_not_held(image: Image) -> None:
    """All is mounted, and nothing names it."""
    assert image.take(charliecloud(*CHARLIECLOUD, "--unset-env='*'"))[0] == NOT_HELD


@pytest.mark.way_out(
    "`--unset-env` in a Slurm job with the plugin, whose files are bound into the container",
    tier="hook",
    outcome="refused over the limit; not held in a musl image",
)
@pytest.mark.parametrize(("program", "got"), [("glibc", HELD), ("musl", NOT_HELD)])
def test_the_plugins_files_hold_it_without(
    image: Image, plugged: Cluster, program: str, got: list[str]
) -> None:
    """With /etc/ld.so.preload and /etc/gpulease of the task in it, a glibc container needs no environment."""
    library = plugged.srun(*JOB, "/bin/sh", "-c", f'{LIBRARY}; echo "${{hook%/*}}"').stdout.strip()
    (image.path / library.lstrip("/")).mkdir(parents=True)
    script = charliecloud("ch-run --bind=/run/nodeagent/hook", PLUGINS_FILES, "--unset-env='*'")
    assert image.take(script, program)[0] == got


needs_podman = pytest.mark.skipif(
    not (shutil.which("podman") and shutil.which("crun")),
    reason="needs podman and crun: make test-slurm installs them",
)


@needs_podman
@pytest.mark.way_out(
    "a podman container in a Slurm job, with the options of docs/slurm.md",
    tier="hook",
    outcome="refused over the limit",
)
def test_a_podman_container_is_held(image: Image) -> None:
    """Rootless; its cgroup namespace hides the cgroup's name, but the environment names the lease."""
    assert image.take_by_podman(*PODMAN) == HELD


@needs_podman
@pytest.mark.way_out(
    "a podman container in a Slurm job that has all but GPULEASE_HOOK",
    tier="hook",
    outcome="not held: in its cgroup namespace nothing else tells the lease",
)
def test_in_a_cgroup_namespace_only_the_environment_tells_the_lease(image: Image) -> None:
    """LD_PRELOAD is handed on, and not the rest."""
    assert image.take_by_podman(*PODMAN[1:]) == NOT_HELD
