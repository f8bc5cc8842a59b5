"""A daemon of root's that starts a task's task-prolog as slurmstepd does, and says how long that took.

slurmstepd.py USER PROGRAM NAME=VALUE...: run by an interpreter of the name slurmstepd, for the agent looks
whether one started who asks. Prints the task-prolog's own output, then milliseconds and exit status.
"""

import os
import sys
import time


def task(user: int, program: str, environment: dict[str, str]) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.close(0)
        os.close(2)
        os.execve(program, [program], environment)
    _, status = os.waitpid(child, 0)
    print(f"\n{(time.perf_counter() - began) * 1e3} {os.waitstatus_to_exitcode(status)}", flush=True)
    os._exit(0)


def main() -> None:
    user, program, *variables = sys.argv[1:]
    if os.fork() == 0:
        task(int(user), program, dict(one.split("=", 1) for one in variables))
    os.wait()


if __name__ == "__main__":
    main()
