"""Run a command on a machine that has AMD GPUs as far as ROCm can tell: python -m tests.fakekfd -- rocminfo

Root only. The command and everything it starts see the GPUs; nothing outside does. Kernels are not executed:
packets are retired, completion is signalled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fakekfd import control, sandbox, topology
from tests.fakekfd.driver import Driver


def main() -> int:
    """The command's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakekfd", description=__doc__)
    parser.add_argument("--gpus", type=int, default=1, help="how many (1)")
    parser.add_argument(
        "--machine", choices=sorted(topology.MODELS), default="mi210", help="which model (mi210)"
    )
    parser.add_argument("--vram", type=int, help="GiB of each GPU, if not the model's own")
    parser.add_argument(
        "--root",
        type=Path,
        help="show it all in this chroot, too, for `chroot ROOT CMD`",
    )
    parser.add_argument("--socket", type=Path, help="give the fake kernel's state at this unix socket")
    parser.add_argument(
        "--report", type=Path, help="write the state there as JSON when the command has ended"
    )
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    model = topology.MODELS[options.machine]
    vram = options.vram << 30 if options.vram else None
    driver = Driver(topology.gpus(model, options.gpus, vram))
    sandbox.enter(model, driver)
    if options.root:
        sandbox.bring_into(options.root)
    if options.socket:
        control.serve(driver, options.socket)
    status = subprocess.run(options.command, check=False).returncode
    if options.report:
        options.report.write_text(json.dumps(driver.snapshot()))
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the mounts go with the namespace, whose last process this may not be
