"""A site's files against its node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.domain.device import DeviceState
from nodeagent.domain.gres import counts_of, parse
from nodeagent.domain.level import Level
from nodeagent.domain.slurm_check import Finding, Site, check
from nodeagent.domain.slurm_lines import Line, line, logical
from nodeagent.domain.slurm_scripts import plugin_run, script_settings
from nodeagent.domain.slurm_setup import SCRIPTS, cgroup_conf, gres_conf, set_up, slurm_conf

RUN = "/run/nodeagent/slurm"
TRES = "AccountingStorageTRES=gres/gpu,gres/shard"
DATABASE = "AccountingStorageType=accounting_storage/slurmdbd"
PART = "AccountingStorageTRES=gres/gpu"
WEIGHTS = "PartitionName=p TRESBillingWeights=GRES/gpu=8,GRES/shard=1"


def lines(name: str, text: str) -> tuple[Line, ...]:
    return tuple(line(f"{name}:{number}", content) for number, content in logical(text))


@pytest.fixture
def node(machines):
    return machines.node("mi300x-spx", 2)


@pytest.fixture
def site_of(node):
    """A site whose files hold what is printed, with texts replaced."""

    def build(*changes: tuple[str, str], **more: object) -> Site:
        setup = set_up("n1", node.devices)
        gres, slurm, cgroup = (
            "\n".join(part) for part in (gres_conf(setup), slurm_conf(setup), cgroup_conf())
        )
        slurm = slurm.replace("#   NodeName", "NodeName")
        for old, new in changes:
            assert old in gres + slurm + cgroup
            gres, slurm, cgroup = (text.replace(old, new) for text in (gres, slurm, cgroup))
        slurm_lines, gres_lines = lines("slurm.conf", slurm), lines("gres.conf", gres)
        counts = counts_of(slurm_lines, "n1")
        found = [f"/dev/dri/{device.render_node}" for device in node.devices]
        site = Site(
            node="n1",
            inventory=node,
            gres=parse(gres_lines, "n1", counts, found),
            counts=counts,
            gres_lines=gres_lines,
            slurm_lines=slurm_lines,
            cgroup_lines=lines("cgroup.conf", cgroup),
            owner="auto",
            request_from="extra",
            scripts={},
        )
        return replace(site, **more)

    return build


def bad(site: Site) -> list[Finding]:
    return [finding for finding in check(site) if finding.level is not Level.OK]


def test_what_is_printed_is_well(site_of) -> None:
    """A site that writes the printed lines has nothing to mend."""
    assert bad(site_of()) == []


@pytest.mark.parametrize(
    ("old", "new", "level", "what", "why"),
    [
        ("renderD[128,136]", "renderD[128,200]", Level.FAIL, "GPU 1", "no one device"),
        ("renderD[128,136]", "renderD[136,128]", Level.WARN, "gres.conf", "do not ascend"),
        (" Flags=amd_gpu_env", "", Level.WARN, "gres.conf", "gres.conf:4 lacks Flags=amd_gpu_env"),
        ("AutoDetect=off", "AutoDetect=rsmi", Level.WARN, "AutoDetect", "numbers the GPUs itself"),
        ("shard:16", "shard:8", Level.FAIL, "Gres=shard", "gives n1 8, gres.conf 16"),
        ("gpu:mi300x:2", "gpu:mi300x:1", Level.FAIL, "Gres=gpu", "gives n1 1, gres.conf 2"),
        ("gpu:mi300x:2", "gpu:mi300:2", Level.FAIL, "Gres=gpu:mi300", "has 0 of that Type"),
        (
            f"Prolog={SCRIPTS}/prolog",
            "Prolog=/a\nProlog=/b,/c",
            Level.WARN,
            "Prolog",
            "is /a,/b,/c: not ours",
        ),
        ("Count=16", "Count=24", Level.FAIL, "shards of AMD Instinct MI300X", "of 12 only 9"),
        ("Count=16", "Count=32", Level.WARN, "shards of AMD Instinct MI300X", "no whole row"),
        ("GresTypes=gpu,shard", "GresTypes=gpu", Level.FAIL, "GresTypes", "add shard"),
        ("select/cons_tres", "select/linear", Level.FAIL, "SelectType", "cons_tres"),
        (
            "SelectType=select/cons_tres",
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU,Multiple_Sharing_Gres_PJ",
            Level.FAIL,
            "SelectTypeParameters",
            "which GPU gives how many",
        ),
        (f"#   {TRES}", f"{DATABASE}\n{PART}", Level.WARN, "AccountingStorageTRES", "add gres/shard"),
        (
            f"#   {TRES}",
            f"{DATABASE}\n{PART}\n{WEIGHTS}",
            Level.FAIL,
            "AccountingStorageTRES",
            "ends at",
        ),
        (f"#   {TRES}", WEIGHTS, Level.FAIL, "TRESBillingWeights", "remove GRES/…: slurmctld"),
        (f"#   {TRES}", TRES, Level.FAIL, "AccountingStorageTRES", "remove gres/gpu,gres/shard: slurmctld"),
        ("nohold_on_prolog_fail", "defer", Level.WARN, "SchedulerParameters", "add nohold_on_prolog_fail"),
        ("PrologFlags=Alloc", "PrologFlags=NoHold", Level.WARN, "PrologFlags", "add Alloc"),
        ("PrologFlags=Alloc", "PrologFlags=Alloc,Serial", Level.WARN, "PrologFlags", "remove Serial"),
        (f"TaskProlog={SCRIPTS}/task-prolog", "", Level.FAIL, "TaskProlog", "is not set"),
        (f"Epilog={SCRIPTS}/epilog", "Epilog=/etc/slurm/e.sh", Level.WARN, "Epilog", "must run"),
        ("ConstrainDevices=yes", "ConstrainDevices=no", Level.WARN, "cgroup.conf", "open every GPU"),
        ("task/cgroup,", "", Level.WARN, "cgroup.conf", "TaskPlugin=task/cgroup"),
        ("JobSubmitPlugins=lua", "", Level.FAIL, "slurm.request_from", "users write that text"),
    ],
)
def test_what_is_amiss_is_named_with_its_fix(site_of, old, new, level, what, why) -> None:
    """One change, and the finding that it makes."""
    found = [one for one in bad(site_of((old, new))) if one.what == what]
    assert [one.level for one in found][:1] == [level]
    assert why in found[0].why


def test_what_the_database_counts_is_complete(site_of) -> None:
    """A site with slurmdbd takes the printed line as it is."""
    assert bad(site_of((f"#   {TRES}", f"{DATABASE}\n{TRES}\n{WEIGHTS}"))) == []


def test_prolog_of_contain_is_as_good(site_of) -> None:
    """Contain means Alloc."""
    assert bad(site_of(("PrologFlags=Alloc", "PrologFlags=Contain"))) == []


def test_ours_may_be_one_of_several_scripts(site_of) -> None:
    """A site may have prologs of its own beside ours, on one line or several."""
    ours = f"Prolog={SCRIPTS}/prolog"
    assert bad(site_of((f"\n{ours}", f"\n{ours},/a\nProlog=/b"))) == []


@pytest.mark.parametrize(
    ("more", "level", "what"),
    [
        ({"owner": "local"}, Level.FAIL, "devices.owner"),
        ({"owner": "any"}, Level.WARN, "devices.owner"),
        ({"request_from": "none"}, Level.WARN, "slurm.request_from"),
        ({"scripts": {f"{SCRIPTS}/prolog": "gone"}}, Level.FAIL, "Prolog"),
        ({"cgroup_lines": None}, Level.WARN, "cgroup.conf"),
        ({"slurm_lines": ()}, Level.WARN, "slurm.conf"),
        ({"settings": script_settings("deadline=120")}, Level.WARN, "prolog.conf"),
        ({"settings": script_settings("shell=/bin/sh")}, Level.WARN, "prolog.conf"),
        ({"settings": script_settings("spool=/var/spool/other")}, Level.FAIL, "prolog.conf"),
        ({"settings_fault": "must belong to root"}, Level.FAIL, "prolog.conf"),
        ({"settings": script_settings("run=/run/other"), "plugin_run": RUN}, Level.FAIL, "prolog.conf"),
        ({"settings": script_settings("epilog_wait=58")}, Level.FAIL, "PrologEpilogTimeout"),
        ({"settings": script_settings("deadline=58")}, Level.FAIL, "PrologEpilogTimeout"),
    ],
)
def test_the_agents_own_side_is_looked_at(site_of, more, level, what) -> None:
    """Settings of the agent, scripts and files that are not there."""
    assert (level, what) in [(one.level, one.what) for one in bad(site_of(**more))]


def test_a_newer_slurms_limit_of_one_script_counts(site_of) -> None:
    """EpilogTimeout, of Slurm 25.05, goes before the limit of both; what is not set is no limit."""
    long = script_settings("epilog_wait=100")
    limit = "PrologEpilogTimeout=60"
    assert bad(site_of((limit, "EpilogTimeout=105"), settings=long)) == []
    assert [one.what for one in bad(site_of((limit, "EpilogTimeout=104"), settings=long))] == [
        "EpilogTimeout"
    ]
    assert bad(site_of((limit, f"{limit}\nEpilogTimeout=105"), settings=long)) == []
    assert bad(site_of((limit, ""), settings=long)) == []


def test_the_example_is_the_defaults() -> None:
    """What prolog.conf.example sets is what counts without it, key by key."""
    example = Path(__file__).parents[2] / "client/slurm/prolog.conf.example"
    assert script_settings(example.read_text()) == script_settings("")


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("", None),
        ("required /usr/lib/other.so run=/x", None),
        ("# required /usr/libexec/nodeagent/slurm/gpulease.so", None),
        ("required /usr/libexec/nodeagent/slurm/gpulease.so", RUN),
        ("include x\noptional\t/usr/libexec/nodeagent/slurm/gpulease.so  a=b run=/x # y", "/x"),
    ],
)
def test_the_plugins_own_place_is_read(text: str, run: str | None) -> None:
    """From plugstack.conf, where it loads the plugin."""
    assert plugin_run(text) == run


def test_a_device_in_no_line_is_anybodys(site_of, node) -> None:
    """A healthy GPU that gres.conf does not name is worth a warning."""
    found = bad(site_of(("renderD[128,136]", "renderD128"), ("Count=16", "Count=8")))
    assert (Level.WARN, node.devices[1].key) in [(one.level, one.what) for one in found]


def test_a_sick_gpu_of_slurms_is_told(site_of, node) -> None:
    """A GPU that Slurm will give out and the agent will not grant."""
    sick = replace(node.devices[0], state=DeviceState.UNHEALTHY, reason="broken")
    site = site_of(inventory=replace(node, devices=(sick, node.devices[1])))
    assert [(one.level, one.what) for one in bad(site)] == [(Level.WARN, "GPU 0")]


def test_another_nodes_name_is_noticed(site_of, node) -> None:
    """No GPU for this name: the likeliest cause is the name."""
    site = site_of()
    none = replace(site, node="n9", gres=parse(site.gres_lines, "n9"))
    assert bad(none)[0].level is Level.FAIL
    assert "n9: is that its name" in bad(none)[0].why
