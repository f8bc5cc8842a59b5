"""A site's Slurm files against what the node has: one finding for each thing that sharing needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nodeagent.domain.device import Device, DeviceState, Inventory
from nodeagent.domain.gres import OFF, Counts, Gres, device_of
from nodeagent.domain.level import Level
from nodeagent.domain.shards import worth
from nodeagent.domain.slurm_lines import Line
from nodeagent.domain.slurm_scripts import ScriptSettings
from nodeagent.domain.slurm_setup import ENVIRONMENT, NO_HOLD, SCRIPTS

PRINTS = "`nodeagent slurm gres-conf` prints it"
SETTINGS = "prolog.conf"
SLACK_SECONDS = 5  # what a script may take beyond its own deadline, and then some
SCRIPT_KEYS = {"Prolog": "prolog", "Epilog": "epilog", "TaskProlog": "task-prolog"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; *why* holds the fix where there is one."""

    level: Level
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Site:
    """All that is compared. Lines are None where the file is not there."""

    node: str
    inventory: Inventory
    gres: Gres
    counts: Counts
    gres_lines: Sequence[Line]
    slurm_lines: Sequence[Line]
    cgroup_lines: Sequence[Line] | None
    owner: str  # devices.owner
    request_from: str  # slurm.request_from
    scripts: Mapping[str, str]  # what is wrong with files of ours, by path
    settings: ScriptSettings = ScriptSettings()
    settings_fault: str | None = None  # why the scripts do not read their settings
    spool: str = ScriptSettings().values["spool"]  # slurm.spool
    plugin_run: str | None = None  # run= of our plugin in plugstack.conf; None: it is not loaded

    def value(self, key: str) -> str | None:
        """A setting of slurm.conf."""
        return _value(self.slurm_lines, key)

    def values(self, key: str) -> list[str]:
        """Every value of a setting of slurm.conf that may come several times."""
        return [value for line in self.slurm_lines if (value := line.get(key)) is not None]

    def words(self, key: str) -> frozenset[str]:
        """A setting of slurm.conf that lists words, in lower case."""
        return frozenset((self.value(key) or "").lower().replace(" ", "").split(",")) - {""}


def check(site: Site) -> list[Finding]:
    """Every finding, good ones included, in the order in which one would mend them."""
    parts = (_gpus, _shards, _counts, _scheduling, _scripts, _settings, _times, _confinement, _requests)
    return [finding for part in (*parts, _ownership) for finding in part(site)]


def _value(lines: Iterable[Line], key: str) -> str | None:
    found = [value for line in lines if (value := line.get(key)) is not None]
    return found[-1] if found else None


def _ok(what: str, why: str) -> Finding:
    return Finding(Level.OK, what, why)


def _warn(what: str, why: str) -> Finding:
    return Finding(Level.WARN, what, why)


def _fail(what: str, why: str) -> Finding:
    return Finding(Level.FAIL, what, why)


def _gpus(site: Site) -> Iterator[Finding]:
    if not site.gres.gpus:
        yield _fail("gres.conf", f"has no GPU for node {site.node}: is that its name? {PRINTS}")
        return
    devices = {gpu.index: device_of(gpu, site.inventory) for gpu in site.gres.gpus}
    for gpu in site.gres.gpus:
        yield _gpu(f"GPU {gpu.index}", gpu.file, devices[gpu.index])
    named = {device.key for device in devices.values() if device}
    for device in site.inventory.devices:
        if device.key not in named and device.state is DeviceState.HEALTHY:
            yield _warn(device.key, f"is in no line of gres.conf, and so anybody's; add it: {PRINTS}")
    yield from _order(site) if site.gres.autodetect == OFF else _detected(site)


def _gpu(what: str, file: str, device: Device | None) -> Finding:
    if device is None:
        return _fail(what, f"{file} names no one device of this node: mend File; {PRINTS}")
    if device.state is not DeviceState.HEALTHY:
        return _warn(what, f"{file} is {device.key}, {device.state}: {device.reason or 'no reason given'}")
    return _ok(what, f"{file} is {device.key}")


def _detected(site: Site) -> Iterator[Finding]:
    why = "slurmd numbers the GPUs itself then; off, with File on each line, is sure"
    yield _warn("AutoDetect", f"is {site.gres.autodetect}: {why}")


def _order(site: Site) -> Iterator[Finding]:
    minors = [device.render_minor for gpu in site.gres.gpus if (device := device_of(gpu, site.inventory))]
    if minors != sorted(minors, key=lambda minor: minor or 0):
        yield _warn(
            "gres.conf", f"files do not ascend: tools number GPUs otherwise than Slurm then; {PRINTS}"
        )
    for line in site.gres_lines:
        flags = (line.get("Flags") or "").lower().split(",")
        if (line.get("Name") or "").lower() == "gpu" and line.about(site.node) and ENVIRONMENT not in flags:
            why = "jobs get CUDA_VISIBLE_DEVICES as well, and HIP counts twice"
            yield _warn("gres.conf", f"{line.where} lacks Flags={ENVIRONMENT}: {why}")


def _shards(site: Site) -> Iterator[Finding]:
    for file in site.gres.stray:
        yield _warn("shards", f"{file} is no GPU of a line: Slurm drops its shards; mend File")
    told = set()
    for gpu in site.gres.gpus:
        device = device_of(gpu, site.inventory)
        key = device and (device.product, device.geometry, gpu.shards)
        if device is None or device.geometry is None or not gpu.shards or key in told:
            continue
        told.add(key)
        yield _worth(device, gpu.shards)
    if site.gres.gpus and not any(gpu.shards for gpu in site.gres.gpus):
        yield _warn("shards", f"none: jobs get whole GPUs only; add Name=shard lines: {PRINTS}")


def _worth(device: Device, shards: int) -> Finding:
    assert device.geometry is not None
    one, what = worth(device, device.geometry, shards), f"shards of {device.product}"
    if one.fits < shards:
        return _fail(what, f"of {shards} only {one.fits} find CUs, queues and room beside others; {PRINTS}")
    says = f"{shards} of {one.cus} CUs, {one.spare_cus} of {device.cus} in none"
    if not one.whole_rows:
        return _warn(
            what, f"{says}; no whole row of {device.geometry.row} CUs: free ones may be too scattered"
        )
    return _ok(what, says)


def _counts(site: Site) -> Iterator[Finding]:
    if not site.slurm_lines:
        yield _warn("slurm.conf", "not found beside gres.conf: only that was looked at")
        return
    has = {"gpu": len(site.gres.gpus), "shard": sum(gpu.shards for gpu in site.gres.gpus)}
    for name, count in has.items():
        said = site.counts.totals.get(name, 0)
        if said != count:
            why = f"slurm.conf gives {site.node} {said}, gres.conf {count}: it is drained, or some lie idle"
            yield _fail(f"Gres={name}", f"{why}; {PRINTS}")
        else:
            yield _ok(f"Gres={name}", f"{count} in both files")
    types = Counter(gpu.type for gpu in site.gres.gpus)
    for (name, kind), said in site.counts.typed.items():
        if name == "gpu" and types[kind] != said:
            why = f"slurm.conf gives {site.node} {said}, gres.conf has {types[kind]} of that Type"
            yield _fail(f"Gres=gpu:{kind}", f"{why}: write the same type in both; {PRINTS}")


def _scheduling(site: Site) -> Iterator[Finding]:
    if not site.slurm_lines:
        return
    missing = {"gpu", "shard"} - site.words("GresTypes")
    yield _lacks("GresTypes", missing, Level.FAIL, "Slurm does not know them")
    if site.value("SelectType") != "select/cons_tres":
        yield _fail("SelectType", "is not select/cons_tres, which alone deals in shards")
    if "multiple_sharing_gres_pj" in site.words("SelectTypeParameters"):
        yield _fail(
            "SelectTypeParameters", "MULTIPLE_SHARING_GRES_PJ: which GPU gives how many shards is not told"
        )
    yield from _accounting(site)
    missing = {NO_HOLD} - site.words("SchedulerParameters")
    yield _lacks(
        "SchedulerParameters", missing, Level.WARN, "a node's fault holds jobs until an operator comes"
    )


def _accounting(site: Site) -> Iterator[Finding]:
    """Only the database knows TRES: slurmctld 22.05 ends where they are named or weighed without one."""
    words = site.words("AccountingStorageTRES")
    weights = ",".join(site.values("TRESBillingWeights")).lower()
    if not (site.value("AccountingStorageType") or "").lower().endswith("slurmdbd"):
        why = "slurmctld ends with it, but for AccountingStorageType=accounting_storage/slurmdbd"
        if named := sorted(word for word in words if word.startswith("gres/")):
            yield _fail("AccountingStorageTRES", f"remove {','.join(named)}: {why}")
        if "gres/" in weights:
            yield _fail("TRESBillingWeights", f"remove GRES/…: {why}")
        return
    missing = {"gres/gpu", "gres/shard"} - words
    level = Level.FAIL if any(name in weights for name in missing) else Level.WARN
    why = "slurmctld ends at TRESBillingWeights" if level is Level.FAIL else "what jobs use is not accounted"
    yield _lacks("AccountingStorageTRES", missing, level, why)


def _lacks(key: str, missing: Iterable[str], level: Level, why: str) -> Finding:
    names = ",".join(sorted(missing))
    return Finding(level, key, f"add {names}: {why}") if names else _ok(key, "complete")


def _scripts(site: Site) -> Iterator[Finding]:
    if not site.slurm_lines:
        return
    for key, name in SCRIPT_KEYS.items():
        ours, values = f"{SCRIPTS}/{name}", ",".join(site.values(key))
        if not values:
            yield _fail(key, f"is not set: set it to {ours}, or jobs run without limits")
        elif ours not in values.split(","):
            yield _warn(key, f"is {values}: not ours, so it must run {ours} and exit as that does")
        else:
            yield _fail(key, site.scripts[ours]) if ours in site.scripts else _ok(key, ours)
    flags = site.words("PrologFlags")
    if not flags & {"alloc", "contain", "x11"}:
        yield _warn("PrologFlags", "add Alloc: srun gives up on a prolog that waits for a GPU to be clean")
    if "serial" in flags:
        yield _warn("PrologFlags", "remove Serial: one job's wait would hold up all others of the node")


def _settings(site: Site) -> Iterator[Finding]:
    if site.settings_fault is not None:
        yield _fail(SETTINGS, site.settings_fault)
    values = site.settings.values
    for key in site.settings.unread:
        kept = f"; {values[key]} counts" if key in values else ""
        yield _warn(SETTINGS, f"{key}: not understood{kept}; docs/slurm.md has the keys and their values")
    if values["spool"] != site.spool:
        why = f"the agent looks for them in {site.spool} (slurm.spool): set both to the same"
        yield _fail(SETTINGS, f"calls that got no answer are left in {values['spool']}, and {why}")
    if site.plugin_run not in (None, values["run"]):
        why = f"the plugin looks in {site.plugin_run}: set its run= to the same, or no job is hooked"
        yield _fail(SETTINGS, f"the prolog writes below {values['run']}, and {why}")


def _times(site: Site) -> Iterator[Finding]:
    """Slurm's own limits on the scripts: who reaches one drains the node."""
    for script, key in (("Prolog", "deadline"), ("Epilog", "epilog_wait")):
        names = (f"{script}Timeout", "PrologEpilogTimeout")  # the first from Slurm 25.05 on
        found = [(name, value) for name in names if (value := site.value(name)) is not None]
        needed = site.settings.seconds(key) + SLACK_SECONDS
        if found and found[0][1].isdigit() and int(found[0][1]) < needed:
            name, value = found[0]
            yield _fail(
                name, f"is {value}: {key} lets the {script.lower()} take longer; set {needed} or more"
            )


def _confinement(site: Site) -> Iterator[Finding]:
    constrained = (_value(site.cgroup_lines or (), "ConstrainDevices") or "no").lower() == "yes"
    if constrained and "task/cgroup" in site.words("TaskPlugin"):
        yield _ok("cgroup.conf", "jobs see their own GPUs only")
    else:
        why = "set ConstrainDevices=yes, and TaskPlugin=task/cgroup in slurm.conf"
        yield _warn("cgroup.conf", f"jobs can open every GPU: {why}")


def _requests(site: Site) -> Iterator[Finding]:
    lua = "lua" in site.words("JobSubmitPlugins")
    if site.request_from == "none":
        why = "a job of several shards gets one; set extra (comment before Slurm 23.02) with job_submit.lua"
        yield _warn("slurm.request_from", f"is none: {why}")
    elif not lua:
        yield _fail(
            "slurm.request_from",
            "users write that text themselves: set JobSubmitPlugins=lua with job_submit.lua",
        )
    else:
        yield _ok(
            "slurm.request_from",
            f"{site.request_from}, written by job_submit.lua if the site's script calls it",
        )


def _ownership(site: Site) -> Iterator[Finding]:
    if site.owner == "local":
        yield _fail(
            "devices.owner", "is local: every job is refused; set auto, or take the GPUs out of gres.conf"
        )
    elif site.owner == "any":
        yield _warn("devices.owner", "is any: others may take what Slurm has promised to a job; set auto")
