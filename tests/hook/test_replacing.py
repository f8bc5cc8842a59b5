"""An upgrade puts a new library beside the one that programs have mapped, and never writes into it."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nodeagent.hook import build

from .conftest import MIB, Node

SOURCES = Path(build.__file__).parent
HOOK = build.TARGETS[0]
PLACE = f"{build.SOURCE}/{HOOK.name}"
IN_PLACE = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
printf new >"$2"
"""


def kept_by(library: Path) -> Path:
    """The file as those see it who have it mapped: by a name of its own."""
    kept = library.with_name("mapped")
    os.link(library, kept)
    return kept


def test_a_program_keeps_its_library_while_another_takes_its_place(node: Node) -> None:
    """What has the old one mapped goes on as before, and is counted together with what loads the new one."""
    if not build.compiler():
        pytest.skip("needs a C compiler")
    node.lease(10 * MIB)
    old = node.start()
    assert old("alloc(4 << 20)") == 1
    assert build.compile_target(HOOK, SOURCES, node.directory) is None
    maps = Path(f"/proc/{old.pid}/maps").read_text(encoding="utf-8")
    assert f"{node.library} (deleted)" in maps
    new = node.start()
    assert new("alloc(4 << 20)") == 1
    assert [old("alloc(4 << 20)"), new("alloc(4 << 20)")] == ["ENOMEM", "ENOMEM"]
    old("free(1)")
    assert new("alloc(4 << 20)") == 2
    assert node.charged() == node.kernel.used() == 8 * MIB


def test_a_build_never_writes_where_a_library_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the linker does with a file that exists, the one in use is as it was."""
    compiler = tmp_path / "cc"
    compiler.write_text(IN_PLACE, encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    library = tmp_path / HOOK.name
    library.write_text("old", encoding="utf-8")
    kept = kept_by(library)
    assert build.compile_target(HOOK, SOURCES, tmp_path) is None
    assert [kept.read_text(encoding="utf-8"), library.read_text(encoding="utf-8")] == ["old", "new"]


def wheel(directory: Path, version: str) -> Path:
    """A package of the library's name and place, whose content is its version."""
    made = directory / f"nodeagent-{version}-py3-none-any.whl"
    about = f"nodeagent-{version}.dist-info"
    files = {
        PLACE: version,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: nodeagent\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{name},{digest(text)},{len(text)}\n" for name, text in files.items()]
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{about}/RECORD", "".join([*record, f"{about}/RECORD,,\n"]))
    return made


def digest(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def test_pip_puts_a_new_library_beside_the_old_one(tmp_path: Path) -> None:
    """`pip install` of a wheel over an older one leaves a library that is in use as it was."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("needs pip")
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "--quiet"]
    install = [*pip, "install", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*install, wheel(tmp_path, "1.0")], check=True)
    (library,) = place.glob(f"lib/python*/site-packages/{PLACE}")
    kept = kept_by(library)
    subprocess.run([*install, wheel(tmp_path, "2.0")], check=True)
    assert [kept.read_text(encoding="utf-8"), library.read_text(encoding="utf-8")] == ["1.0", "2.0"]
