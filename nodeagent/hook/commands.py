"""setuptools' commands that run `nodeagent.hook.build`. Imported by builds only; setup.cfg names them."""

# setuptools has no types:
# mypy: disable-error-code="import-untyped, misc"

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Command
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build


def _load() -> ModuleType:
    """`build.py` by its path: at build time the package need not be importable."""
    path = Path(__file__).with_name("build.py")
    spec = importlib.util.spec_from_file_location("nodeagent_hook_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class BuildNative(Command):
    """``build_native``: compile the C parts into the build directory; in place for an editable install."""

    description = "compile the hook"
    user_options: list[tuple[str, str, str]] = []  # noqa: RUF012 - setuptools' own declaration

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        native = _load()
        destination = native.SOURCE if self.editable_mode else self._built(native)
        if reason := native.compile_all(native.SOURCE, destination):
            self.announce(f"the hook is left out: {reason}", level=3)

    def get_outputs(self) -> list[str]:
        native = _load()
        made = [self._built(native) / name for name in (*_names(native), native.REASON)]
        return [str(path) for path in made if path.exists()]

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def get_source_files(self) -> list[str]:
        native = _load()
        return sorted(str(path) for path in native.SOURCE.glob("*.[ch]"))

    def _built(self, native: ModuleType) -> Path:
        return Path(self.build_lib or "build/lib", native.SOURCE)


class Build(build):
    """``build``, and the C parts after Python's."""

    sub_commands = [*build.sub_commands, ("build_native", None)]  # noqa: RUF012 - setuptools' own declaration


class PlatformWheel(bdist_wheel):
    """A wheel for this platform and any Python 3: what is compiled knows nothing of Python."""

    def finalize_options(self) -> None:
        if _load().unbuildable() is None:
            self.distribution.has_ext_modules = lambda: True
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        _, _, where = super().get_tag()
        return "py3", "none", where


def _names(native: ModuleType) -> list[str]:
    return [target.name for target in native.TARGETS]
