"""Containers attacked from inside, by each path of the node that the acceptance suite knows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.node.attacks import PROGRAM, REFUSED_BY, weaker_than_stated
from tests.rig.docker.conftest import Container, Engine, bound, call, lease, lease_options, said, until

pytestmark = [pytest.mark.rig, pytest.mark.slow]
MIB = 1 << 20
PYTHON = "/usr/bin/python3"
LEFT_OUT = ("__pycache__", "test", "idlelib", "ensurepip", "lib2to3", "pydoc_data", "dist-packages")
INSIDE = (PYTHON, "-I", "-S", "/attack/attack.py", "/dev", "/attack")


@pytest.fixture(scope="module")
def python_image(started: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """This system's Python, alone, as an image of both engines."""
    archive = tmp_path_factory.mktemp("image") / "python.tar"
    library = Path(sysconfig.get_path("stdlib"))
    interpreter = Path(PYTHON).resolve()
    extensions = [str(one) for one in (library / "lib-dynload").glob("*.so")]
    needed = {
        word
        for binary in (str(interpreter), *extensions)
        for word in said("ldd", binary).split()
        if word.startswith("/")
    }
    with tarfile.open(archive, "w") as file:
        file.add(interpreter, PYTHON.lstrip("/"))
        file.add(library, str(library).lstrip("/"), filter=_without_tests)
        for path in needed:
            file.add(Path(path).resolve(), path.lstrip("/"))
    for client in ("docker", "podman"):
        said(client, "import", str(archive), "python")
    return "python"


def _without_tests(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(entry.name).name in LEFT_OUT else entry


def attacked(engine: Engine, image: str, directory: Path) -> Container:
    """A container whose own command was an attack; it stays."""
    (device,) = [one for one in call("GET", "/v1/devices")["devices"] if one["device"] in lease_options()[-1]]
    minor = int(device["render_node"].removeprefix("renderD"))
    wanted = {device["device"]: (device["gpu_id"] or 0, minor, (1 << 30) + 64 * MIB)}
    (directory / "targets.json").write_text(json.dumps(wanted))
    shutil.copy(PROGRAM, directory)
    directory.chmod(0o777)
    mount = ("--mount", f"type=bind,source={directory},target=/attack")
    stay = (PYTHON, "-c", "import time; time.sleep(600)")
    words = ("gpulease", "--timeout=2m", engine.client, "run", "--detach", *lease_options(), *mount, image)
    container = engine.container(said(*words, *INSIDE, "--", *stay))
    bound(container)
    return container


def outcomes(directory: Path, lease_id: int) -> Any:
    """What came of an attack, once it is over."""
    record = directory / f"{lease_id}.json"
    until(record.exists)
    found = json.loads(record.read_text())
    record.unlink()
    return found


def test_a_container_holds_what_its_lease_states(engine: Engine, python_image: str, tmp_path: Path) -> None:
    """No path that the stated guarantee closes gives a byte over the slice, to the command and to an exec."""
    container = attacked(engine, python_image, tmp_path)
    memory = lease(container)["guarantee"]["memory"]
    assert memory == "kernel"
    found = [outcomes(tmp_path, container.lease)]
    done = subprocess.run(
        [engine.client, "exec", container.id, *INSIDE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found.append(outcomes(tmp_path, container.lease))
    for one in found:
        (paths,) = one.values()
        assert set(paths) == set(REFUSED_BY)
        assert paths["the rig's driver"] == "refused"
        assert weaker_than_stated(memory, one) == []
