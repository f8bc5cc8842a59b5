"""The lines that are printed for Slurm's files."""

from __future__ import annotations

import pytest

from nodeagent.domain.device import DeviceState
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.gres import device_of, parse
from nodeagent.domain.slurm_lines import line, logical
from nodeagent.domain.slurm_setup import gres_conf, set_up, slurm_conf, type_of


def read_back(lines: list[str], node: str = "n1"):
    text = "\n".join(lines)
    return parse([line(f"gres.conf:{number}", content) for number, content in logical(text)], node)


def test_what_is_printed_is_read_back_as_the_devices(machines) -> None:
    """Each GPU's number leads by its file to the device, with its shards."""
    node = machines.node("mi300x-spx", 8)
    gres = read_back(gres_conf(set_up("n1", node.devices)))
    found = [device_of(gpu, node) for gpu in gres.gpus]
    assert found == list(node.devices)
    assert {gpu.shards for gpu in gres.gpus} == {8}
    assert gres.autodetect == "off"
    assert read_back(gres_conf(set_up("n1", node.devices)), "n2").gpus == ()


def test_files_ascend_whatever_the_order_of_the_devices(machines) -> None:
    """Slurm's numbers are those of the render nodes in order, also where kinds of GPU are mixed."""
    kinds = ("mi210", "vega10", "mi210")
    devices = [machines.device(kind, number) for number, kind in enumerate(kinds)]
    gres = read_back(gres_conf(set_up("n1", devices[::-1])))
    assert [gpu.file[-3:] for gpu in gres.gpus] == ["128", "136", "144"]
    assert [gpu.type for gpu in gres.gpus] == ["mi210", "mi25", "mi210"]
    assert [gpu.shards for gpu in gres.gpus] == [6, 8, 6]


def test_partitions_are_gpus(machines) -> None:
    """Every partition has its own render node, and a type that is not the whole card's."""
    node = machines.partitions(2, 4)
    lines = gres_conf(set_up("n1", node.devices))
    assert "Type=mi300x_cpx File=/dev/dri/renderD[128-135]" in "\n".join(lines)
    assert len(read_back(lines).gpus) == 8


def test_what_is_left_over_is_said(machines) -> None:
    """48 of 304 CUs of an MI300X in eight are in no shard: never lost silently."""
    lines = gres_conf(set_up("n1", machines.node("mi300x-spx").devices))
    assert any("48 of 304 CUs are in no shard" in one for one in lines)
    finer = gres_conf(set_up("n1", machines.node("mi300x-spx").devices, 16))
    assert any("no whole row" in one for one in finer)
    sharp = gres_conf(set_up("n1", machines.node("mi300x-spx").devices, 9))
    assert any("may work like" in one for one in sharp)


def test_a_device_that_cannot_be_given_is_left_out_and_named(machines) -> None:
    """An excluded APU, or a device without a render node, is a comment with its reason."""
    devices = [
        machines.device("mi210"),
        machines.device("vega10", 1, state=DeviceState.EXCLUDED, reason="an APU"),
        machines.device("vega10", 2, render_node=None),
    ]
    lines = gres_conf(set_up("n1", devices))
    assert [gpu.file for gpu in read_back(lines).gpus] == ["/dev/dri/renderD128"]
    assert "# left out: renderD136: an APU" in lines
    assert any("has no render node" in one for one in lines)


@pytest.mark.parametrize(("shards", "why"), [(40, "only 24 find CUs"), (12, "only 9 find CUs")])
def test_too_many_shards_are_refused_with_a_better_number(machines, shards, why) -> None:
    """What could never be granted at once is not printed."""
    with pytest.raises(InvalidField, match=why) as wrong:
        set_up("n1", machines.node("mi300x-spx").devices, shards)
    assert "8 suit it" in wrong.value.why


def test_a_node_without_gpus_says_so() -> None:
    """What is appended to gres.conf is never silently nothing."""
    assert gres_conf(set_up("n1", []))[0].startswith("# no GPU to share: `nodeagent doctor`")


def test_slurms_own_limit_holds(machines) -> None:
    """Slurm takes 1024 of one gres with files on a node."""
    with pytest.raises(InvalidField, match="1024"):
        set_up("n1", machines.node("vega10", 65).devices, 16)


def test_slurm_conf_counts_by_type(machines) -> None:
    """The node's Gres names each type with its count; a GPU costs what its shards do."""
    devices = [machines.device("mi210"), machines.device("vega10", 1), machines.device("vega10", 2)]
    text = "\n".join(slurm_conf(set_up("n1", devices)))
    assert "NodeName=n1 Gres=gpu:mi210:1,gpu:mi25:2,shard:22" in text
    assert "TRESBillingWeights=GRES/gpu=8,GRES/shard=1" in text
    for needed in (
        "GresTypes=gpu,shard",
        "nohold_on_prolog_fail",
        "PrologFlags=Alloc",
        "SelectType=select/cons_tres",
    ):
        assert needed in text


@pytest.mark.parametrize(
    ("product", "called"),
    [
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Radeon RX 7900 XT/XTX", "rx_7900_xt_xtx"),
        ("AMD Instinct", "gfx942"),
        ("AMD 'x'; File=/dev/sda\n", "x_file_dev_sda"),
    ],
)
def test_a_type_is_a_word(machines, product, called) -> None:
    """Whatever a card calls itself becomes letters, digits and underscores."""
    assert type_of(machines.device("mi300x-spx", product=product)) == called
