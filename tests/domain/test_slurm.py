"""What Slurm's scripts say of a job, and what a job may ask for within its shards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.domain.device import VRAM_GRAIN, Device, DeviceState
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.geometry import Geometry
from nodeagent.domain.request import Policy
from nodeagent.domain.sizing import demand
from nodeagent.domain.slurm import (
    LARGEST_ENVIRONMENT,
    LONGEST_LINE,
    Verdict,
    Word,
    job_of,
    parse_environment,
)
from nodeagent.domain.slurm_request import LOOKED_AT, Asked, Place, asked_in, slices_of

GIB = 1 << 30
LEAST = {"SLURM_JOB_ID": "42", "SLURM_JOB_UID": "1000", "SLURM_JOB_GID": "100"}


def job(**more: str):
    return job_of({**LEAST, **more})


def device() -> Device:
    return Device(
        key="0000:c1:00.0/0",
        epoch=1,
        pci="0000:c1:00.0",
        partition=0,
        render_node="renderD128",
        kfd_node=2,
        ordinal=0,
        gpu_id=4096,
        unique_id=1,
        product="AMD Instinct MI300X",
        gfx="gfx942",
        geometry=Geometry(cus=304, xccs=8, engines=4, arrays=1, array_cus=10, pair=1),
        pool="pool",
        vram_bytes=192 * GIB,
        grantable_bytes=190 * GIB,
        queue_slots=24,
        numa_node=0,
        hive=0,
        peers=(),
        compute_partition="SPX",
        memory_partition="NPS1",
        state=DeviceState.HEALTHY,
        reason=None,
        uuid=None,
    )


def test_only_what_is_used_is_read():
    """Of an environment the known names are read, newlines and all; the rest, wrong or huge, goes by."""
    raw = b"PATH=/bin\0SLURM_JOB_ID=42\0SLURM_JOB_EXTRA=a\nb=$(id)\0no equals\0\xff=\xfe\0"
    assert parse_environment(raw) == {"SLURM_JOB_ID": "42", "SLURM_JOB_EXTRA": "a\nb=$(id)"}


def test_a_name_that_stands_twice_is_no_environment():
    """Which of two values counts is nobody's to guess: a forged second one is refused."""
    with pytest.raises(InvalidField, match="SLURM_JOB_ID"):
        parse_environment(b"SLURM_JOB_ID=42\0SLURM_JOB_ID=43\0")


def test_a_longer_environment_is_refused():
    """More than 64 KiB is no environment of a script."""
    with pytest.raises(InvalidField):
        parse_environment(b"A" * (LARGEST_ENVIRONMENT + 1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_JOB_ID", ""),
        ("SLURM_JOB_ID", "42 "),
        ("SLURM_JOB_ID", "٤٢"),
        ("SLURM_JOB_ID", "-1"),
        ("SLURM_JOB_UID", "4294967295"),
        ("SLURM_JOB_GPUS", "0,"),
        ("SLURM_JOB_GPUS", "0;1"),
        ("SLURM_JOB_GPUS", "0-9999"),
        ("SLURM_JOB_SLUID", "../x"),
        ("SLURM_CONF", "slurm.conf"),
        ("SLURMD_NODENAME", "a/b"),
        ("GPULEASE_AT", "12"),
        ("SLURM_JOB_RESTART_COUNT", "one"),
    ],
)
def test_what_slurm_does_not_write_is_refused_by_name(name, value):
    """A value that Slurm would not write is refused, and the refusal names the variable."""
    with pytest.raises(InvalidField) as caught:
        job(**{name: value})
    assert caught.value.field == name


def test_gpus_are_read_as_lists_and_ranges():
    """Numbers with commas and ranges, each once, in their order; none is no GPU."""
    assert job(SLURM_JOB_GPUS="3,0-1,0").gpus == (3, 0, 1)
    assert job().gpus == ()


def test_a_run_of_a_job_has_its_own_key():
    """Job, restarts and start are the key; what was added behind it for a second lease is the same run."""
    one = job(SLURM_JOB_RESTART_COUNT="1", SLURM_JOB_START_TIME="1700000000")
    assert one.run == "slurm-42-1-1700000000"
    assert one.is_run("slurm-42-1-1700000000")
    assert one.is_run("slurm-42-1-1700000000.7")
    assert not one.is_run("slurm-42-1-17000000001")
    assert not one.is_run(None)


def test_an_epilog_knows_its_run_by_its_start():
    """The epilog of a requeued run counts the next restart already: its start says which run it is."""
    epilog = job(SLURM_JOB_RESTART_COUNT="1", SLURM_JOB_START_TIME="1700000000")
    assert epilog.started_as("slurm-42-0-1700000000.3")
    assert not epilog.started_as("slurm-42-1-1700000120")
    assert not job().started_as("slurm-42-0-0")


def test_the_time_of_the_script_is_boot_time():
    """Hundredths of seconds of /proc/uptime, in nanoseconds."""
    assert job(GPULEASE_AT="1234.05").at_ns == 1_234_050_000_000
    assert job().at_ns is None


def test_what_a_jobs_cgroup_may_be_called():
    """The job's id; with 26.05, which tells the QOS, the SLUID first; never anything else."""
    assert job().cgroup_names == ("job_42",)
    assert job(SLURM_JOB_SLUID="s5K1KKYAYG5D00").cgroup_names == ("job_42", "s5K1KKYAYG5D00")
    newer = job(SLURM_JOB_SLUID="s5K1KKYAYG5D00", SLURM_JOB_EXCLUSIVE="NO")
    assert newer.cgroup_names == ("s5K1KKYAYG5D00", "job_42")


@given(st.text())
def test_an_answer_is_two_safe_lines(why):
    """Whatever the reason holds, a script reads one word and one printable line of at most 200 characters."""
    word, line, end = str(Verdict(Word.WAIT, why)).split("\n")
    assert (word, end) == ("wait", "")
    assert len(line) <= LONGEST_LINE
    assert line.isascii()
    assert not line or line.isprintable()


@pytest.mark.parametrize("directory", ["/run/nodeagent/hook/gpulease/7", "/run/a b", "relative", "/x\ny"])
def test_where_the_hook_lies_is_told_by_plain_paths(directory):
    """A third line, for root's plugin to mount; a path that a shell could misread is not told."""
    lines = str(Verdict(Word.GRANTED, "lease 7", (directory, "/usr/lib/libgpulease.so"))).splitlines()
    told = ["hook /run/nodeagent/hook/gpulease/7 /usr/lib/libgpulease.so"]
    assert lines[2:] == (told if directory.endswith("/7") else [])


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("gpulease:shards=2", Asked(2)),
        ("mine; gpulease:shards=2,vram=8G", Asked(2, 8 * GIB)),
        ("gpulease:shards=2,cu=12.5%;x", Asked(2, None, 12.5)),
        ("a\tgpulease:shards=3,vram=8GB,cu=25%", Asked(3, 8 * 10**9, 25.0)),
        ("gpulease:gpus", Asked(None)),
        ("", None),
        ("gpulease:shards=0", None),
        ("gpulease:shards=2,", None),
        ("gpulease:shards=2 gpulease:shards=8", None),
        ("xgpulease:shards=2", None),
        ("gpulease:shards=2\0", None),
        ("gpulease:cu=25%,shards=2", None),
        ("gpulease:shards=٢", None),
        ("gpulease:shards=2,vram=-1", None),
        ("gpulease:shards=2,vram=8KB", None),
        ("gpulease:shards=$(id)", None),
        (" " * (LOOKED_AT - len("gpulease:shards=1")) + "gpulease:shards=12", None),
        (" " * LOOKED_AT + "gpulease:shards=8", None),
    ],
)
def test_one_word_is_read_exactly(text, asked):
    """The word as job_submit.lua writes it, once, in the first characters; anything else asks for nothing."""
    assert asked_in(text) == asked


@given(st.text())
def test_no_text_breaks_the_reader(text):
    """A user's text asks for something that can be had, or for nothing."""
    found = asked_in(text)
    assert found is None or found.shards is None or found.shards > 0


def test_who_asks_for_nothing_gets_one_shard():
    """The default is one shard of each GPU, never more, and a GPU without shards is granted whole."""
    one, whole = slices_of([Place(device(), 8), Place(device(), 0)], None)
    assert (one.vram_percent, one.cu_percent) == (12.5, 12.5)
    assert whole.whole


def test_shards_are_the_share_of_the_gpu():
    """2 of 8 shards are a quarter of CUs and VRAM; within them less may be asked for."""
    (quarter,) = slices_of([Place(device(), 8)], Asked(2))
    assert (quarter.vram_percent, quarter.cu_percent) == (25.0, 25.0)
    (less,) = slices_of([Place(device(), 8)], Asked(2, 8 * GIB, 10.0))
    assert (less.vram_bytes, less.vram_percent, less.cu_percent) == (8 * GIB, None, 10.0)


@pytest.mark.parametrize(
    "asked", [Asked(9), Asked(2, 48 * GIB), Asked(2, None, 25.01), Asked(2, None, 0.0), Asked(1, 10**15)]
)
def test_nobody_gets_more_than_the_shards(asked):
    """More shards than the GPU has, or more VRAM or CUs than the shards are worth, is refused with why."""
    assert "asks for" in str(slices_of([Place(device(), 8)], asked))


def test_shards_of_several_gpus_count_evenly():
    """How Slurm dealt them is not told: each GPU gets its even part, and together no more than was paid."""
    slices = slices_of([Place(device(), 8)] * 2, Asked(5))
    assert [one.vram_percent for one in slices] == [25.0, 25.0]


@given(st.integers(1, 64))
def test_all_shards_together_are_at_most_the_gpu(shards):
    """However many shards a GPU is dealt into, all of them fit on it."""
    gpu = device()
    (one,) = slices_of([Place(gpu, shards)], None)
    wanted = demand(one, gpu, gpu.geometry, Policy.BINPACK, 25)
    assert wanted.cus * shards <= gpu.cus
    assert wanted.vram_bytes * shards <= gpu.grantable_bytes
    most = gpu.grantable_bytes // shards // VRAM_GRAIN * VRAM_GRAIN
    assert not isinstance(slices_of([Place(gpu, shards)], Asked(1, most)), str)
