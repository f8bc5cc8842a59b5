"""Slurm's files, as they lie on a node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.adapters import machine
from nodeagent.adapters.discovery import discover
from nodeagent.adapters.slurm_conf import MOST_BYTES, SlurmConf
from nodeagent.domain.device import Inventory
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.gres import owned

NOTHING = Inventory(None, (), ())
GPU = "Name=gpu File=/dev/dri/renderD128\n"


def conf(directory: Path, **more: object) -> SlurmConf:
    return SlurmConf(standard=(directory / "etc", directory / "run"), hostname="n1.cluster", **more)


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def files(read: SlurmConf, **more: object) -> list[str]:
    gres = read.gres(NOTHING, **more)
    assert gres is not None
    return [gpu.file.rpartition("/")[2] for gpu in gres.gpus]


def test_a_node_without_slurm_has_no_gres(tmp_path) -> None:
    """No file anywhere: nothing is Slurm's, and nothing is wrong."""
    assert conf(tmp_path).gres(NOTHING) is None


def test_the_first_directory_with_a_file_counts(tmp_path) -> None:
    """slurmd's own copies are taken only where the site's directory has none."""
    write(tmp_path / "run/gres.conf", GPU)
    read = conf(tmp_path)
    assert files(read) == ["renderD128"]
    write(tmp_path / "etc/slurm.conf", "NodeName=n1 Gres=gpu:1")
    assert files(read) == []


def test_the_setting_and_slurm_conf_come_first(tmp_path) -> None:
    """[slurm] gres_conf, else beside SLURM_CONF, else the standard places."""
    write(tmp_path / "etc/gres.conf", GPU)
    own = write(tmp_path / "own/gres.conf", GPU.replace("128", "129"))
    beside = write(tmp_path / "beside/gres.conf", GPU.replace("128", "130")).with_name("slurm.conf")
    assert files(conf(tmp_path), slurm_conf=beside) == ["renderD130"]
    assert files(conf(tmp_path, slurm_conf=beside)) == ["renderD130"]
    assert files(conf(tmp_path, gres_conf=own), slurm_conf=beside) == ["renderD129"]


def test_a_setting_that_names_no_file_is_a_fault(tmp_path) -> None:
    """A mistyped path must not look like a node without Slurm."""
    with pytest.raises(OutsideFault, match="gres_conf names it"):
        conf(tmp_path, gres_conf=tmp_path / "gres.cnf").gres(NOTHING)


def test_the_node_is_asked_for_by_name_or_host(tmp_path) -> None:
    """A prolog gives its node's name; else this host's counts, also where slurm.conf calls it otherwise."""
    write(tmp_path / "etc/gres.conf", "NodeName=a Name=gpu File=/dev/a1\nNodeName=b Name=gpu File=/dev/b1")
    write(tmp_path / "etc/slurm.conf", "NodeName=a NodeHostname=n1\nNodeName=b NodeHostname=n2")
    assert files(conf(tmp_path)) == ["a1"]
    assert files(conf(tmp_path), node="b") == ["b1"]


def test_a_change_is_seen(tmp_path) -> None:
    """A file that is written, replaced, or put where none was is read again."""
    read = conf(tmp_path)
    path = write(tmp_path / "etc/gres.conf", GPU)
    assert files(read) == ["renderD128"]
    write(path, GPU.replace("128", "129"))
    os.utime(path, ns=(0, 1))
    assert files(read) == ["renderD129"]
    write(tmp_path / "new", GPU.replace("128", "130")).rename(path)
    assert files(read) == ["renderD130"]
    write(path.with_name("slurm.conf"), "NodeName=n1 Gres=shard:8")
    gres = read.gres(NOTHING)
    assert gres is not None
    assert gres.gpus[0].shards == 8


def test_what_has_not_changed_is_not_read_again(tmp_path) -> None:
    """Every placement asks: it costs a stat of each file, no reading."""
    write(tmp_path / "etc/gres.conf", GPU)
    read = conf(tmp_path)
    assert read.files() is read.files()


def test_included_files_are_read_and_watched(tmp_path) -> None:
    """Include is relative to slurm.conf's directory; a change there is a change."""
    write(tmp_path / "etc/gres.conf", "include gpus.d/one.conf\n")
    one = write(tmp_path / "etc/gpus.d/one.conf", GPU)
    read = conf(tmp_path)
    assert files(read) == ["renderD128"]
    write(one, GPU + GPU.replace("128", "129"))
    assert files(read) == ["renderD128", "renderD129"]
    one.unlink()
    with pytest.raises(OutsideFault, match=r"one\.conf: does not exist; .*gres\.conf:1 includes it"):
        read.gres(NOTHING)


def test_files_that_include_each_other_end(tmp_path) -> None:
    """A circle is named, never followed for ever."""
    write(tmp_path / "etc/gres.conf", "Include gres.conf\n")
    with pytest.raises(OutsideFault, match="include each other"):
        conf(tmp_path).gres(NOTHING)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_may_write_is_refused(tmp_path, mode) -> None:
    """Who can write gres.conf could give himself a GPU."""
    write(tmp_path / "etc/gres.conf", GPU, mode)
    with pytest.raises(OutsideFault, match="must belong to root"):
        conf(tmp_path).gres(NOTHING)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_a_file_of_another_user_is_refused(tmp_path) -> None:
    """An included file, too, must be root's."""
    write(tmp_path / "etc/gres.conf", "Include other.conf\n")
    os.chown(write(tmp_path / "etc/other.conf", GPU), 1000, 0)
    with pytest.raises(OutsideFault, match=r"other\.conf: must belong to root"):
        conf(tmp_path).gres(NOTHING)


def test_what_is_no_file_holds_nobody_up(tmp_path) -> None:
    """A FIFO in the file's place is refused at once."""
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc/gres.conf", 0o600)
    with pytest.raises(OutsideFault, match="no regular file"):
        conf(tmp_path).gres(NOTHING)


def test_an_endless_file_is_refused(tmp_path) -> None:
    """A file is read up to a bound; what is longer is named, never cut."""
    path = write(tmp_path / "etc/gres.conf", GPU)
    os.truncate(path, MOST_BYTES + 1)
    with pytest.raises(OutsideFault, match="longer than 4 MiB"):
        conf(tmp_path).gres(NOTHING)


def test_autodetect_finds_the_nodes_own_render_nodes(tmp_path) -> None:
    """AutoDetect alone: the GPUs are those that the agent found, in the order of their minors."""
    write(tmp_path / "etc/gres.conf", "AutoDetect=rsmi\n")
    simulated = machine.find("mi300x-spx")
    machine.materialise(simulated, tmp_path / "machine")
    inventory = discover(machine.SimulatedTree(tmp_path / "machine", simulated))
    gres = conf(tmp_path).gres(inventory)
    assert gres is not None
    assert len(gres.gpus) == 8
    assert [gpu.file for gpu in gres.gpus] == sorted(gpu.file for gpu in gres.gpus)
    assert owned(gres, inventory) == {device.key for device in inventory.devices}
