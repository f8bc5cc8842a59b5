"""What both packages bring beside the programs: manual pages and completions, and a spec that lists them."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "systemd" / "packages"
SPEC = PACKAGES / "nodeagent.spec"
COMMANDS = ("gpulease", "nodeagent")


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which .ci/manual has put its part of a package."""
    made = tmp_path_factory.mktemp("package")
    done = subprocess.run([ROOT / ".ci/manual", made], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def test_each_command_has_a_manual_page(manual: Path) -> None:
    """As man(1) wants it, compressed, with the program's name and section; the user's one and root's."""
    pages = {path.name: gzip.decompress(path.read_bytes()).decode() for path in manual.rglob("*.gz")}
    assert pages.keys() == {"gpulease.1.gz", "nodeagent.8.gz"}
    for file, text in pages.items():
        name, section, _ = file.split(".")
        assert re.search(rf'^\.TH "?{name}"? "?{section}"? ', text, re.M | re.I)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_reads_the_completion(manual: Path, command: str, shell: str) -> None:
    """Where it looks for it, and without a complaint."""
    places = {
        "bash": f"bash-completion/completions/{command}",
        "zsh": f"zsh/vendor-completions/_{command}",
        "fish": f"fish/vendor_completions.d/{command}.fish",
    }
    script = manual / "usr/share" / places[shell]
    assert command in script.read_text(encoding="utf-8")
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    read = subprocess.run([shell, "-n", script], capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


def test_the_spec_lists_it_all(manual: Path) -> None:
    """rpmbuild fails for a file that %files does not have; so does it for one that is not there."""
    listed = re.findall(r"^(?:%\S+ )?(/\S+)$", SPEC.read_text().partition("%files\n")[2], re.M)
    made = {f"/{path.relative_to(manual)}" for path in manual.rglob("*") if path.is_file()}
    assert [path for path in made if not any(fnmatch(path, line) for line in listed)] == []
    tops = ("/usr/share/man/", "/usr/share/bash-completion/", "/usr/share/zsh/", "/usr/share/fish/")
    assert {line for line in listed if line.startswith(tops)} == made


def test_the_packages_carry_the_manual() -> None:
    """.ci/stage, of which both are made, lays it out."""
    assert '.ci/manual "$root"' in (ROOT / ".ci/stage").read_text()


def test_rpm_reads_the_spec() -> None:
    """With the version and the tree that .ci/rpm gives, and the scripts in it are a shell's."""
    if shutil.which("rpmspec") is None:
        pytest.skip("rpmspec is not installed: apt-get install rpm")
    defined = ("--define", "version 1.2.3", "--define", f"tree {ROOT}")
    asked = ["rpmspec", "--query", "--queryformat", "%{name} %{version} %{license}", *defined, SPEC]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "nodeagent 1.2.3 Apache-2.0", "")


def scripts() -> dict[str, str]:
    """Each script that a package manager runs as root, Debian's and the spec's."""
    sections = re.split(r"^%(?=\w+$)", SPEC.read_text(), flags=re.M)
    of_rpm = {f"%{one.split()[0]}": one.partition("\n")[2] for one in sections if one.startswith(("p",))}
    return of_rpm | {name: (PACKAGES / name).read_text() for name in ("postinst", "prerm", "postrm")}


@pytest.mark.parametrize("name", sorted(scripts()))
def test_scripts_are_a_shells(name: str) -> None:
    """dash, which is Debian's sh, reads each."""
    read = subprocess.run(["dash", "-n"], input=scripts()[name], capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
    assert {"%post", "%preun", "%postun", "postinst", "prerm", "postrm"} == set(scripts())


@pytest.mark.slow
def test_lintian_finds_nothing() -> None:
    """In the Debian package that was built, beside what lintian-overrides gives reasons for."""
    built = sorted((ROOT / "dist").glob("nodeagent_*_amd64.deb"))
    if not built or shutil.which("lintian") is None:
        pytest.skip("needs dist/nodeagent_*.deb (make deb) and lintian (apt-get install lintian)")
    done = subprocess.run(["lintian", built[-1]], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_override_has_a_reason() -> None:
    """Each group of tags that lintian is not to tell of stands below a comment."""
    lines = (PACKAGES / "lintian-overrides").read_text().splitlines()
    reasons = [line for line in lines if line.startswith("# ")]
    tags = [line for line in lines if re.fullmatch(r"nodeagent: [a-z-]+", line)]
    assert lines[0] in reasons and lines[1] in reasons and len(reasons) + len(tags) == len(lines)
