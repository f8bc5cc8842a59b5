"""From the domain's types to answers, each as much as this caller may see."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from nodeagent.api import answers
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.device import Device
from nodeagent.domain.drains import NODE
from nodeagent.domain.guarantee import Guarantee
from nodeagent.domain.idle import Idle
from nodeagent.domain.lease import ENDED, HeldSlice, HolderKind, Lease, LeaseState
from nodeagent.domain.records import Drain, EffectRecord, Event
from nodeagent.domain.refusals import DeviceRefusal, Refusal
from nodeagent.service.container_view import ContainerView
from nodeagent.service.effects import Told
from nodeagent.service.hosting import Hosted
from nodeagent.service.orders import BypassView, Caller, Free, NodeView
from nodeagent.service.queue import Standing

_LARGEST = 2**53 - 1  # a holder may tell anything; more is no number to readers of JSON
_LAST_TIME = 253_402_300_799  # 9999-12-31T23:59:59Z, the last that RFC 3339 can say


def timestamp(seconds: float) -> str:
    """RFC 3339, UTC, of wall-clock *seconds*."""
    kept = min(max(seconds, 0), _LAST_TIME)
    return datetime.fromtimestamp(kept, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def effect_answer(record: EffectRecord) -> answers.EffectAnswer:
    return answers.EffectAnswer(
        id=record.id,
        kind=record.kind,
        state=record.state,
        arguments=dict(record.arguments),
        evidence=None if record.evidence is None else dict(record.evidence),
    )


@dataclass(frozen=True, slots=True)
class Viewer:
    """Whose eyes an answer is for."""

    caller: Caller
    open: bool  # [privacy] leases = "open"
    # Text for shells: there another's text could become a command, even of an administrator.
    plain: bool = False

    def sees(self, uid: int | None) -> bool:
        """Whether what belongs to *uid* is shown in full."""
        if self.caller.administrator:
            return not self.plain or uid == self.caller.uid
        if self.open and not self.plain:
            return True
        # A container's root is uid 0 here too, but nothing of the host's root is its own.
        return uid is not None and uid == self.caller.uid != 0


@dataclass(frozen=True, slots=True)
class Presenter:
    """Builds answers; the clock turns boot time into what people read."""

    clock: Clock

    def lease(
        self,
        lease: Lease,
        viewer: Viewer,
        told: Told | None = None,
        container: ContainerView | None = None,
        standing: Standing | None = None,
        idle: Idle | None = None,
    ) -> answers.LeaseAnswer:
        if not viewer.sees(lease.holder.uid):
            return self._masked(lease, standing)
        return self._full(lease, told, container, standing, idle)

    def own_lease(
        self,
        lease: Lease,
        container: ContainerView | None = None,
        standing: Standing | None = None,
        idle: Idle | None = None,
    ) -> answers.LeaseAnswer:
        """A lease that the caller has just acted on, which the use case allowed."""
        return self._full(lease, container=container, standing=standing, idle=idle)

    def device(self, device: Device, free: Free) -> answers.DeviceAnswer:
        geometry = device.geometry
        return answers.DeviceAnswer(
            device=device.key,
            epoch=device.epoch,
            pci=device.pci,
            partition=device.partition,
            render_node=device.render_node,
            kfd_node=device.kfd_node,
            ordinal=device.ordinal,
            card=device.card,
            gpu_id=device.gpu_id,
            hip_index=device.ordinal,
            smi_index=device.smi_index,
            slurm_index=device.slurm_index,
            unique_id=_wide(device.unique_id),
            uuid=device.uuid,
            product=device.product,
            gfx=device.gfx,
            cus=device.cus,
            row=geometry.row if geometry else None,
            xccs=geometry.xccs if geometry else None,
            shader_engines=geometry.engines if geometry else None,
            shader_arrays=geometry.arrays if geometry else None,
            pool=device.pool,
            vram_bytes=device.vram_bytes,
            grantable_bytes=device.grantable_bytes,
            foreign_bytes=device.foreign_bytes,
            queue_slots=device.queue_slots,
            shares=device.shares,
            reserved=list(device.reserved.parties) if device.reserved else None,
            numa_node=device.numa_node,
            hive=_wide(device.hive),
            peers=[answers.PeerAnswer(device=p.device, kind=p.kind, weight=p.weight) for p in device.peers],
            compute_partition=device.compute_partition,
            memory_partition=device.memory_partition,
            owner=device.owner,
            state=device.state,
            reason=device.reason,
            free=answers.FreeAnswer(
                cus=len(free.cus),
                vram_bytes=free.vram_bytes,
                queue_slots=free.queue_slots,
                shares=free.shares,
            ),
        )

    def node(self, node: NodeView) -> answers.NodeAnswer:
        return answers.NodeAnswer(
            name=node.name,
            machine=node.machine,
            version=node.version,
            boot_id=node.boot_id,
            generation=node.generation,
            ready=node.ready,
            reason=node.reason,
            pools=[
                answers.PoolAnswer(
                    pool=pool.key,
                    region=pool.region,
                    vram_bytes=pool.vram_bytes,
                    grantable_bytes=pool.grantable_bytes,
                )
                for pool in node.pools
            ],
            skipped=[answers.SkippedAnswer(kfd_node=s.kfd_node, reason=s.reason) for s in node.skipped],
            tiers=[answers.TierAnswer(name=t.name, present=t.present, why=t.why) for t in node.tiers],
            modes={kind.value: node.modes.of(kind).value for kind in HolderKind},
            bypass=None if node.bypass is None else self._bypass(node.bypass),
            bypass_trouble=node.bypass_trouble,
            opened=node.opened,
            drains=[self._drain(drain) for drain in node.drains],
        )

    def _bypass(self, view: BypassView) -> answers.BypassAnswer:
        bypass = view.bypass
        return answers.BypassAnswer(
            since=timestamp(bypass.at),
            until=self._at(bypass.until_s * SECOND_NS) or "",
            until_boottime_seconds=bypass.until_s,
            uid=bypass.uid,
            reason=bypass.reason,
            seen=view.seen,
        )

    def _drain(self, drain: Drain) -> answers.DrainAnswer:
        return answers.DrainAnswer(
            device=None if drain.device == NODE else drain.device,
            reason=drain.reason,
            uid=drain.uid,
            since=timestamp(drain.at),
            until=None if drain.until_at is None else timestamp(drain.until_at),
        )

    def event(self, event: Event, viewer: Viewer) -> answers.EventAnswer:
        seen = viewer.sees(event.uid)
        return answers.EventAnswer(
            id=event.id,
            at=timestamp(event.at),
            kind=event.kind,
            uid=event.uid if seen else None,
            lease=event.lease,
            device=event.device,
            reason=event.reason if seen else None,
            data=dict(event.data) if seen and event.data is not None else None,
            count=event.count,
            first_at=timestamp(event.at if event.first_at is None else event.first_at),
        )

    def refusal(self, refusal: Refusal) -> answers.ProblemAnswer:
        """The 409; blockers are ids, never names."""
        return answers.ProblemAnswer(
            type=f"urn:nodeagent:refusal:{refusal.code}",
            title="The request does not fit now",
            status=409,
            code=refusal.code,
            detail=refusal.why,
            blockers=list(refusal.blockers),
            devices=[self._device_refusal(device) for device in refusal.devices],
            earliest_at=self._at(refusal.earliest_ns),
            next=refusal.next_act,
        )

    def guest(self, hosted: Hosted) -> answers.GuestAnswer:
        """A container in a lease, for who let it in."""
        return answers.GuestAnswer(
            lease=hosted.lease,
            id=hosted.number,
            guarantee=_guarantee(hosted.guarantee),
            container=_container(hosted.view),
        )

    def _full(
        self,
        lease: Lease,
        told: Told | None = None,
        container: ContainerView | None = None,
        standing: Standing | None = None,
        idle: Idle | None = None,
    ) -> answers.LeaseAnswer:
        return answers.LeaseAnswer(
            id=lease.id,
            state=lease.state,
            masked=False,
            holder=answers.HolderAnswer(kind=lease.holder.kind, id=lease.holder.id, uid=lease.holder.uid),
            anchor=answers.AnchorAnswer(
                kind=lease.anchor.kind,
                armed=lease.anchor.armed,
                ttl_seconds=lease.anchor.ttl_seconds,
                pid=lease.anchor.pid,
                cgroup=lease.anchor.cgroup,
            ),
            slices=[_slice(held, _told_bytes(told, at)) for at, held in enumerate(lease.slices)],
            guarantee=_guarantee(lease.guarantee),
            denied=None if told is None else min(told.denied, _LARGEST),
            environment=None if lease.environment is None else dict(lease.environment),
            cgroup=lease.cgroup,
            container=None if container is None else _container(container),
            request_id=lease.request_id,
            priority=lease.request.priority,
            queue_priority=lease.request.queue_priority,
            class_name=lease.request.class_name,
            queue=self._queue(lease, standing),
            idle=None if idle is None else self._idle(idle),
            created_at=timestamp(lease.created_at),
            expires_at=self._ends(lease),
            ended_at=None if lease.ended_at is None else timestamp(lease.ended_at),
            reason=lease.reason,
        )

    def _masked(self, lease: Lease, standing: Standing | None) -> answers.LeaseAnswer:
        return answers.LeaseAnswer(
            id=lease.id,
            state=lease.state,
            masked=True,
            holder=answers.HolderAnswer(kind=lease.holder.kind, id=None, uid=None),
            anchor=None,
            slices=[_masked_slice(held) for held in lease.slices],
            guarantee=None,
            denied=None,
            environment=None,
            cgroup=None,
            container=None,
            request_id=None,
            priority=None,
            queue_priority=None,
            class_name=None,
            queue=self._queue(lease, standing),
            idle=None,
            created_at=None,
            expires_at=self._ends(lease),
            ended_at=None if lease.ended_at is None else timestamp(lease.ended_at),
            reason=None,
        )

    def _device_refusal(self, refusal: DeviceRefusal) -> answers.DeviceRefusalAnswer:
        return answers.DeviceRefusalAnswer(
            device=refusal.device,
            code=refusal.code,
            why=refusal.why,
            blockers=list(refusal.blockers),
            earliest_at=self._at(refusal.earliest_ns),
        )

    def _queue(self, lease: Lease, standing: Standing | None) -> answers.QueueAnswer | None:
        if lease.state is not LeaseState.QUEUED:
            return None
        earliest_ns = None if standing is None else standing.earliest_ns
        return answers.QueueAnswer(
            position=None if standing is None else standing.position,
            earliest_at=None if earliest_ns is None else self._at(max(earliest_ns, self.clock.boot_ns())),
            gives_up_at=self._at(lease.wait_until_ns),
        )

    def _idle(self, idle: Idle) -> answers.IdleAnswer:
        return answers.IdleAnswer(since=self._at(idle.since_ns), ends_at=self._at(idle.ends_ns))

    def _ends(self, lease: Lease) -> str | None:
        # Without a ttl a deadline is only that for the holder to appear.
        if lease.state in ENDED or not lease.anchor.armed or lease.anchor.ttl_seconds is None:
            return None
        if lease.state is LeaseState.QUEUED:
            return None  # its time counts from its start
        return self._at(lease.anchor.deadline_ns)

    def _at(self, boot_ns: int | None) -> str | None:
        if boot_ns is None:
            return None
        return timestamp(self.clock.wall() + (boot_ns - self.clock.boot_ns()) / SECOND_NS)


def _wide(number: int) -> str | None:
    return f"0x{number:016x}" if number else None


def _told_bytes(told: Told | None, at: int) -> int | None:
    return min(told.vram_bytes[at], _LARGEST) if told is not None and at < len(told.vram_bytes) else None


def _guarantee(guarantee: Guarantee) -> answers.GuaranteeAnswer:
    return answers.GuaranteeAnswer(
        memory=guarantee.memory,
        compute=guarantee.compute,
        visibility=guarantee.visibility,
        ipc=guarantee.ipc,
        queues=guarantee.queues,
    )


def _container(view: ContainerView) -> answers.ContainerAnswer:
    return answers.ContainerAnswer(
        engine=view.engine,
        id=view.id,
        cgroup_parent=view.cgroup_parent,
        devices=[answers.ContainerDeviceAnswer(**one) for one in view.devices],
        groups=list(view.groups),
        mounts=[answers.MountAnswer(**one) for one in view.mounts],
        environment=dict(view.environment),
        labels=dict(view.labels),
        stop_timeout_seconds=view.stop_timeout_seconds,
        cdi=view.cdi,
        seccomp=None if view.seccomp is None else dict(view.seccomp),
    )


def _slice(held: HeldSlice, told_bytes: int | None) -> answers.SliceAnswer:
    placed = held.placed
    return answers.SliceAnswer(
        device=placed.device,
        cus=str(placed.cus),
        cu_requested=placed.cu_requested,
        cu_count=len(placed.cus),
        effective_cus=placed.effective_cus,
        shared=placed.shared,
        exclusive=placed.exclusive,
        vram_bytes=placed.vram_bytes,
        told_bytes=told_bytes,
        queue_slots=placed.queue_slots,
        state=held.state,
    )


def _masked_slice(held: HeldSlice) -> answers.SliceAnswer:
    placed = held.placed
    return answers.SliceAnswer(
        device=placed.device,
        cus=None,
        cu_requested=None,
        cu_count=len(placed.cus),
        effective_cus=None,
        shared=None,
        exclusive=None,
        vram_bytes=placed.vram_bytes,
        told_bytes=None,
        queue_slots=placed.queue_slots,
        state=held.state,
    )
