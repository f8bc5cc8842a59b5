"""What gres.conf and slurm.conf say of a node's GPUs."""

from __future__ import annotations

import pytest

from nodeagent.domain.errors import InvalidField
from nodeagent.domain.gres import Counts, counts_of, device_of, nodes_on, owned, parse
from nodeagent.domain.slurm_lines import included, line, logical


def lines(text: str, name: str = "gres.conf"):
    return [line(f"/etc/slurm/{name}:{number}", content) for number, content in logical(text)]


def gres(text: str, node: str = "n1", slurm: str = "", found: tuple[str, ...] = ()):
    counts = counts_of(lines(slurm, "slurm.conf"), node) if slurm else None
    return parse(lines(text), node, counts, found)


def files(read) -> list[str]:
    return [gpu.file.rpartition("/")[2] for gpu in read.gpus]


def shards(read) -> list[int]:
    return [gpu.shards for gpu in read.gpus]


def test_the_position_is_the_order_of_the_lines() -> None:
    """Without AutoDetect a GPU's number is where its line stands, not its minor."""
    read = gres(
        """
        Name=gpu Type=mi300x File=/dev/dri/renderD[136,128]
        name=GPU type=mi210 FILE=/dev/dri/renderD130
        """
    )
    assert files(read) == ["renderD136", "renderD128", "renderD130"]
    assert [gpu.type for gpu in read.gpus] == ["mi300x", "mi300x", "mi210"]
    assert [gpu.index for gpu in read.gpus] == [0, 1, 2]


def test_autodetect_sorts_by_file() -> None:
    """With AutoDetect a GPU's number is its file's place, as numbers and not as letters go."""
    read = gres("AutoDetect=rsmi\nName=gpu File=/dev/dri/renderD[130,128]\nName=gpu File=/dev/dri/renderD9")
    assert files(read) == ["renderD9", "renderD128", "renderD130"]


def test_autodetect_alone_finds_the_nodes_own_gpus() -> None:
    """No line names a file: the node's are taken, as many as slurm.conf counts."""
    found = ("/dev/dri/renderD136", "/dev/dri/renderD128")
    assert files(gres("AutoDetect=rsmi", found=found)) == ["renderD128", "renderD136"]
    assert files(gres("AutoDetect=rsmi", slurm="NodeName=n1 Gres=gpu:1", found=found)) == ["renderD136"]
    assert files(gres("", found=found)) == []
    assert files(gres("AutoDetect=rsmi", slurm="NodeName=n1 CPUs=4", found=found)) == []


def test_the_nodes_own_autodetect_counts_more_than_the_general_one() -> None:
    """A line for this node overrides the line for all, before or after it."""
    text = "NodeName=n1 AutoDetect=off\nAutoDetect=rsmi\nNodeName=n2 AutoDetect=nvml"
    assert gres(text).autodetect == "off"
    assert gres(text, "n2").autodetect == "nvml"
    assert gres(text, "n3").autodetect == "rsmi"


def test_lines_of_other_nodes_are_not_this_nodes() -> None:
    """NodeName is a hostlist; a line without one is for all."""
    text = """
    NodeName=n[1-2] Name=gpu File=/dev/dri/renderD128
    NodeName=n[3-9] Name=gpu File=/dev/dri/renderD129
    Name=gpu File=/dev/dri/renderD130
    """
    assert files(gres(text)) == ["renderD128", "renderD130"]
    assert files(gres(text, "n4")) == ["renderD129", "renderD130"]


def test_comments_and_continued_lines_are_read_as_slurm_reads_them() -> None:
    """A comment ends a line, a backslash continues one, quotes keep blanks, `=` may stand apart."""
    read = gres('Name = gpu \\\n  Type="mi 300" \\\n File=/dev/dri/renderD128 # Name=gpu File=/dev/x\n# all')
    assert [(gpu.type, gpu.file) for gpu in read.gpus] == [("mi 300", "/dev/dri/renderD128")]


TWO = "Name=gpu File=/dev/dri/renderD[128,136]\n"


@pytest.mark.parametrize(
    ("text", "slurm", "worth"),
    [
        (TWO + "Name=shard Count=16", "", [8, 8]),
        (TWO + "Name=shard Count=9", "", [4, 5]),
        (
            TWO + "Name=shard Count=8 File=/dev/dri/renderD136\nName=shard Count=2 File=/dev/dri/renderD128",
            "",
            [2, 8],
        ),
        (TWO + "Name=shard Count=8 File=/dev/dri/renderD[128,136]", "", [4, 4]),
        (TWO + "Name=shard Count=8 File=/dev/dri/renderD128", "", [8, 0]),
        (TWO + "Name=shard File=/dev/dri/renderD[128,136]", "", [1, 1]),
        (TWO, "NodeName=n[1-4] Gres=gpu:mi300x:2,shard:12", [6, 6]),
        (TWO, "NodeName=DEFAULT Gres=gpu:2,shard:4\nNodeName=n1 CPUs=4", [2, 2]),
        (TWO + "Name=shard", "NodeName=n1 Gres=shard:mi300x:no_consume:6", [3, 3]),
        (TWO, "NodeName=n2 Gres=gpu:2,shard:4", [0, 0]),
        (TWO + "Name=shard Count=1K", "", [512, 512]),
        (TWO, "", [0, 0]),
    ],
)
def test_shards_are_dealt_as_slurm_deals_them(text, slurm, worth) -> None:
    """By file where lines name files, else evenly; where gres.conf is silent slurm.conf counts."""
    assert shards(gres(text, slurm=slurm)) == worth


def test_shards_of_no_gpu_are_told() -> None:
    """A shard line whose file is no GPU's is dropped, as by Slurm, and named."""
    read = gres(
        TWO + "Name=shard Count=8 File=/dev/dri/renderD200\nName=shard Count=1 File=/dev/dri/renderD128"
    )
    assert (shards(read), read.stray) == ([1, 0], ("/dev/dri/renderD200",))


def test_several_files_of_one_gpu_are_one_gpu() -> None:
    """MultipleFiles is one GPU, known by its render node."""
    read = gres("Name=gpu MultipleFiles=/dev/dri/card1,/dev/dri/renderD129")
    assert files(read) == ["renderD129"]


def test_a_number_is_a_position_or_else_a_minor() -> None:
    """SLURM_JOB_GPUS gives positions; 128 and up are minors where no position is so high."""
    read = gres(TWO)
    assert [gpu and gpu.index for gpu in map(read.gpu, (0, 1, 2, 128, 136, 137, -1))] == [
        0,
        1,
        None,
        0,
        1,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("text", "field", "fix"),
    [
        ("Name=gpu", "gres.conf:1: File", "renderD[128-135]"),
        ("\nName=gpu File=/dev/dri/renderD[130-128]", "gres.conf:2: File", "counts down"),
        ("Name=gpu File=/dev/dri/renderD[128-131] Count=3", "gres.conf:1: Count", "names 4"),
        (TWO + "Name=gpu File=/dev/dri/renderD128", "gres.conf:2: File", "earlier line"),
        (TWO + "Name=shard Count=many", "gres.conf:2: Count", "write a number"),
        (TWO + "Name=shard Count=1\nName=shard Count=1", "gres.conf:2: File", "one line alone"),
        ("Name=gpu File=/dev/dri/renderD128 oops", "gres.conf:1: oops", "KEY=VALUE"),
        ("NodeName=n[1 Name=gpu File=/dev/dri/renderD128", "gres.conf:1: NodeName", "bracket"),
        ('Name=gpu MultipleFiles=""', "gres.conf:1: MultipleFiles", "no file"),
    ],
)
def test_what_is_wrong_is_named_with_its_fix(text, field, fix) -> None:
    """The fault names file, line and field, and says what to write."""
    with pytest.raises(InvalidField) as wrong:
        gres(text)
    assert wrong.value.field.endswith(field)
    assert fix in wrong.value.why


def test_a_line_of_another_node_may_be_as_it_likes() -> None:
    """One node's typing error must not stop the others."""
    assert files(gres("NodeName=n2 Name=gpu File=/dev/dri/renderD[9-1] oops\n" + TWO)) == [
        "renderD128",
        "renderD136",
    ]


def test_counts_know_types() -> None:
    """``gpu:TYPE:N`` counts for the name and for its type."""
    read = counts_of(lines("NodeName=n1 Gres=gpu:a:2,gpu:b:1,shard:8"), "n1")
    assert read == Counts({"gpu": 3, "shard": 8}, {("gpu", "a"): 2, ("gpu", "b"): 1})


def test_the_host_of_a_node_is_told_by_nodehostname() -> None:
    """A node's name need not be its host's: several nodes may run on one."""
    text = """
    NodeName=DEFAULT CPUs=2
    NodeName=n[1-2] NodeHostname=h[1-2].cluster
    NodeName=x[1-2] NodeHostname=h1
    NodeName=h7
    """
    assert nodes_on(lines(text), "h1") == ("n1", "x1", "x2")
    assert nodes_on(lines(text), "h7") == ("h7",)
    assert nodes_on(lines(text), "h9") == ()


def test_an_include_is_told_from_a_setting() -> None:
    """``Include`` in any case names a file."""
    assert included("  include /etc/slurm/gpus.conf ") == "/etc/slurm/gpus.conf"
    assert included("IncludeThis=1") is None


def test_the_device_is_the_one_that_the_file_names(machines) -> None:
    """Render node, PCI address or card: never the place in the list."""
    node = machines.node("mi300x-spx", 3)
    read = gres(
        "Name=gpu File=/dev/dri/renderD144,/dev/dri/by-path/pci-0000:11:00.0-render,/dev/dri/renderD7"
    )
    assert [device and device.ordinal for device in (device_of(gpu, node) for gpu in read.gpus)] == [
        2,
        0,
        None,
    ]
    assert owned(read, node) == {node.devices[2].key, node.devices[0].key}


def test_a_partitioned_card_by_its_pci_address_is_no_device(machines) -> None:
    """A PCI address names several devices there: none of them is guessed."""
    parts = [
        machines.device("mi300x-cpx", 0, key=f"0000:11:00.0/{part}", partition=part) for part in range(2)
    ]
    read = gres("Name=gpu File=/dev/dri/by-path/pci-0000:11:00.0-render")
    assert device_of(read.gpus[0], machines.of(parts)) is None
