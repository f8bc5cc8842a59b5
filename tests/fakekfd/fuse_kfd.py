"""The fake KFD as a mount: `kfd`, `dri/renderD<n>`, `proc/<pid>/…` as in /sys/class/kfd/kfd/proc,
and `used/<n>` as a card's mem_info_vram_used.

For a test whose programs open given paths, this is all that is needed::

    with fake_kfd([Gpu(4096, 128, 8 << 30, 8 << 30)]) as fake:
        subprocess.run([program, str(fake.kfd), str(fake.render(128))], check=True)
        assert fake.driver.snapshot()["gpus"][0]["peak"] == 1 << 30

Never map or read these files in the process that serves them: it would wait for itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.fakekfd.driver import Driver, Gpu, Process
from tests.fakekfd.drm import RenderNodes
from tests.fakekfd.fuse import Attr, Files, Ioctl, Mount
from tests.fakekfd.ioctls import Ioctls
from tests.fakekfd.packets import retire_all

GIB = 1 << 30
DEVICE = Attr(stat.S_IFREG | 0o666, 1 << 42, mapped=True)
DIRECTORY = Attr(stat.S_IFDIR | 0o755)
TEXT = Attr(stat.S_IFREG | 0o444)
BUSY_MILLISECONDS, IDLE_MILLISECONDS = 1, 20


class KfdFiles(Files):
    """The mount's content, made from the driver's state at each look."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.ioctls = Ioctls(driver)
        self.renders = RenderNodes(driver)
        self.used = {f"used/{gpu.minor}": gpu.gpu_id for gpu in driver.gpus.values()}
        self.nodes = {f"dri/renderD{gpu.minor}": gpu.gpu_id for gpu in driver.gpus.values()}

    def attr(self, path: str) -> Attr | None:
        if path == "kfd" or path in self.nodes:
            return DEVICE
        if path in ("", "dri", "proc", "used"):
            return DIRECTORY
        if path in self.used:
            return TEXT
        found = self._look(path)
        return DIRECTORY if isinstance(found, dict) else None if found is None else TEXT

    def names(self, path: str) -> list[str]:
        if path == "":
            return ["kfd", "dri", "proc", "used"]
        if path == "used":
            return [str(gpu.minor) for gpu in self.driver.gpus.values()]
        if path == "dri":
            return [node.removeprefix("dri/") for node in self.nodes]
        found = self._look(path)
        return list(found) if isinstance(found, dict) else []

    def content(self, path: str) -> bytes:
        if path in self.used:
            return f"{self.driver.gpus[self.used[path]].used}\n".encode()
        found = self._look(path)
        return found.encode() if isinstance(found, str) else b""

    def _look(self, path: str) -> dict[str, object] | str | None:
        """The directory (by name) or text at proc/…, None if there is none."""
        with self.driver.lock:
            place: object = {"proc": {str(pid): process for pid, process in self.driver.processes.items()}}
            for part in path.split("/"):
                if isinstance(place, Process):
                    place = entry(self.driver, place)
                place = place.get(part) if isinstance(place, dict) else None
            if isinstance(place, Process):
                place = entry(self.driver, place)
        return place if isinstance(place, (dict, str)) else None

    def opened(self, path: str, tid: int) -> int:
        return self.driver.open(tid) if path == "kfd" else self.renders.open(self.nodes[path])

    def released(self, opening: int) -> None:
        if opening in self.renders.nodes:
            self.renders.release(opening)
        else:
            self.driver.release(opening)

    def ioctl(self, request: Ioctl) -> None:
        serve = self.renders.serve if request.opening in self.renders.nodes else self.ioctls.serve
        try:
            serve(request)
        except OSError as error:
            request.answer(-(error.errno or errno.EIO))

    def interrupted(self, unique: int) -> None:
        self.ioctls.interrupted(unique)


def entry(driver: Driver, process: Process) -> dict[str, object]:
    """A process's part of kfd/proc (kfd_process.c, kfd_procfs_*)."""
    queues = {
        str(queue.queue_id): {"gpuid": f"{queue.gpu_id}", "size": f"{queue.size}", "type": f"{queue.kind}"}
        for queue in process.queues.values()
    }
    files: dict[str, object] = {"pasid": "32770\n", "queues": queues}
    for gpu_id in driver.gpus:
        files[f"vram_{gpu_id}"] = f"{driver.vram(process, gpu_id)}\n"
        files[f"sdma_{gpu_id}"] = "0\n"
    for context in range(1, process.contexts):
        used = {f"vram_{gpu_id}": f"{driver.vram(process, gpu_id, context)}\n" for gpu_id in driver.gpus}
        files[f"context_{context}"] = used
    return files


class FakeKfd:
    """A running fake: *directory* is where it is mounted."""

    def __init__(self, driver: Driver, directory: Path) -> None:
        self.driver, self.directory = driver, directory
        self.files = KfdFiles(driver)
        self.mount = Mount(self.files, directory)
        self._stopping = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)
        self._clock.start()

    @property
    def kfd(self) -> Path:
        """To be opened in place of /dev/kfd."""
        return self.directory / "kfd"

    def render(self, minor: int) -> Path:
        """To be opened in place of /dev/dri/renderD<minor>."""
        return self.directory / f"dri/renderD{minor}"

    @property
    def proc(self) -> Path:
        """In place of /sys/class/kfd/kfd/proc."""
        return self.directory / "proc"

    def close(self) -> None:
        """Stop serving and take the mount away."""
        self._stopping.set()
        self._clock.join()
        self.mount.close()

    def _tick(self) -> None:
        """Packets, timeouts, and the ends of processes even while a child holds the descriptor."""
        while not self._stopping.is_set():
            with self.driver.lock:
                processes = list(self.driver.processes.values())
            poll = select.poll()
            for process in processes:
                poll.register(process.pidfd, select.POLLIN)
            busy = any(process.queues for process in processes)
            ended = {fd for fd, _ in poll.poll(BUSY_MILLISECONDS if busy else IDLE_MILLISECONDS)}
            for process in processes:
                if process.pidfd in ended:
                    self.driver.end(process)
            self.files.ioctls.tick()
            retire_all(self.driver, self.files.ioctls)


def default_gpus(count: int = 1, vram: int = 64 * GIB) -> list[Gpu]:
    """*count* GPUs with render nodes from 128 on."""
    return [Gpu(4096 + index, 128 + index, vram, vram) for index in range(count)]


@contextlib.contextmanager
def fake_kfd(gpus: Sequence[Gpu] | None = None) -> Iterator[FakeKfd]:
    """A fake KFD in a directory of its own; PermissionError without root or FUSE."""
    directory = Path(tempfile.mkdtemp(prefix="fakekfd-"))
    directory.chmod(0o755)
    try:
        fake = FakeKfd(Driver(list(gpus) if gpus is not None else default_gpus()), directory)
        try:
            yield fake
        finally:
            fake.close()
    finally:
        directory.rmdir()


def usable() -> str:
    """Why there can be no fake KFD here, or ""."""
    if os.geteuid() != 0:
        return "the fake KFD needs uid 0 to mount FUSE"
    try:
        with fake_kfd([]):
            return ""
    except OSError as error:
        return f"the fake KFD needs FUSE: {error}"
