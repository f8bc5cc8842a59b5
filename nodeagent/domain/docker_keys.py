"""The keys and values of docker's bodies that reach no GPU, by name: what is not listed is refused.

Source: moby's ``api/types/container``, 20.10 to 28 (API 1.41 to 1.51), and runc's ``libcontainer/specconv``.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CREATE_KEYS = _words(
    """
    ArgsEscaped AttachStderr AttachStdin AttachStdout Cmd Domainname Entrypoint Env ExposedPorts
    Healthcheck HostConfig Hostname Image Labels MacAddress NetworkDisabled NetworkingConfig OnBuild
    OpenStdin Shell StdinOnce StopSignal StopTimeout Tty User Volumes WorkingDir
    """
)
EXEC_KEYS = _words(
    """
    AttachStderr AttachStdin AttachStdout Cmd ConsoleSize Detach DetachKeys Env Privileged Tty User
    WorkingDir
    """
)
VOLUME_KEYS = _words("ClusterVolumeSpec Driver DriverOpts Labels Name")

_RESOURCES = _words(
    """
    BlkioDeviceReadBps BlkioDeviceReadIOps BlkioDeviceWriteBps BlkioDeviceWriteIOps BlkioWeight
    BlkioWeightDevice CpuCount CpuPercent CpuPeriod CpuQuota CpuRealtimePeriod CpuRealtimeRuntime
    CpuShares CpusetCpus CpusetMems IOMaximumBandwidth IOMaximumIOps KernelMemory KernelMemoryTCP
    Memory MemoryReservation MemorySwap MemorySwappiness NanoCpus OomKillDisable PidsLimit
    RestartPolicy Ulimits
    """
)
# Keys of resources that an update may carry empty only.
UPDATE_EMPTY = _words("CgroupParent DeviceCgroupRules DeviceRequests Devices")
UPDATE_KEYS = _RESOURCES | UPDATE_EMPTY
# Keys of a HostConfig whose every value is ordinary; docker_host.py judges all others that are known.
HOST_ORDINARY = _RESOURCES | _words(
    """
    AutoRemove CapDrop CgroupnsMode ConsoleSize ContainerIDFile Dns DnsOptions DnsSearch ExtraHosts
    GroupAdd Init Links LogConfig OomScoreAdj PortBindings PublishAllPorts ReadonlyRootfs ShmSize
    StorageOpt Sysctls Tmpfs UTSMode
    """
)

MOUNT_KEYS = _words(
    """
    BindOptions ClusterOptions Consistency ImageOptions ReadOnly Source Target TmpfsOptions Type
    VolumeOptions
    """
)
BIND_KEYS = _words(
    """
    CreateMountpoint NonRecursive Propagation ReadOnlyForceRecursive ReadOnlyNonRecursive
    """
)
MOUNT_VOLUME_KEYS = _words("DriverConfig Labels NoCopy Subpath")
MOUNT_TYPES = frozenset(("bind", "image", "tmpfs", "volume"))
REQUEST_KEYS = _words("Capabilities Count DeviceIDs Driver Options")
DEVICE_KEYS = _words("CgroupPermissions PathInContainer PathOnHost")

# Neither mounts, raw I/O, modules, file handles of the node's own trees nor programs at a device cgroup.
CAPABILITIES = _words(
    """
    AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND CHOWN DAC_OVERRIDE FOWNER FSETID IPC_LOCK
    IPC_OWNER KILL LEASE LINUX_IMMUTABLE MKNOD NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW
    SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_CHROOT SYS_NICE SYS_PACCT SYS_PTRACE SYS_RESOURCE
    SYS_TIME SYS_TTY_CONFIG WAKE_ALARM
    """
)
# Devices that people pass to containers every day and that are no way to a GPU's memory; also what is below.
DEVICES = (
    "/dev/fuse",
    "/dev/full",
    "/dev/infiniband",
    "/dev/kvm",
    "/dev/net/tun",
    "/dev/null",
    "/dev/ppp",
    "/dev/random",
    "/dev/rtc0",
    "/dev/snd",
    "/dev/urandom",
    "/dev/zero",
)
# A runtime acts on these by itself: devices, the unit's slice, hooks and sockets of the node.
LOUD_ANNOTATIONS = ("cdi.k8s.io/", "org.systemd.property.", "run.oci.")
SECURITY = frozenset(("apparmor", "label", "no-new-privileges"))
