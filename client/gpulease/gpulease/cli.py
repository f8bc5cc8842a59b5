"""The ``gpulease`` command: its words, its exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import NoReturn, Optional

from gpulease import __version__
from gpulease.client import DEFAULT_SOCKET, DEFAULT_TIMEOUT_SECONDS, Client
from gpulease.command import Invocation
from gpulease.containers.flags import ENGINES
from gpulease.errors import FAILED_BEFORE_START, AnswerError, GpuleaseError, UsageError
from gpulease.filters import DEVICE_STATES, LEASE_STATES, add_filters
from gpulease.ids import ID_FORMS
from gpulease.models import ENDED_STATES
from gpulease.options import add_request_options, positive, value_of
from gpulease.relay import Interrupted
from gpulease.screen import Screen
from gpulease.show import show_error
from gpulease.sizes import parse_duration

_WITH_COMMAND = ("run", "exec", *ENGINES)
_LEASING = ("grant", "adopt", "renew", "release", "env")
_WITH_VALUE = ("--socket", "--timeout")  # of the options that may stand before a command
_EXIT_CODES = """\
exit codes: 0 done, 2 usage, 3 refused, 4 not allowed, 5 agent unreachable or unhealthy; of run, exec and the
container engines: the command's own (128 + N if signal N killed it), 125 for any failure before it started"""


class CommandLineError(UsageError):
    """argparse's complaint, with the *program* (and command) that it is about."""

    def __init__(self, message: str, program: str) -> None:
        super().__init__(message)
        self.program = program


class Parser(argparse.ArgumentParser):
    """Raises instead of exiting, and guesses no abbreviations: they would break as options are added."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings, allow_abbrev=False)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise CommandLineError(message.removeprefix("argument "), self.prog)


def build_parser(with_engines: bool = True) -> Parser:
    """All commands; the options of engines, which only their help needs, cost milliseconds."""
    parser = Parser(
        prog="gpulease",
        description="Take, use and give back slices of this node's AMD GPUs.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gpulease {__version__}")
    _common(parser, socket=None, timeout=DEFAULT_TIMEOUT_SECONDS, json=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    def command(name: str, what: str, usage: Optional[str] = None) -> Parser:
        added: Parser = commands.add_parser(name, help=what, description=what, usage=usage)
        _common(added, socket=argparse.SUPPRESS, timeout=argparse.SUPPRESS, json=argparse.SUPPRESS)
        return added

    _add_reading(command)
    _add_leasing(command)
    _add_running(command)
    _add_engines(command, with_engines)
    script = command("completion", "a script that completes these commands in a shell")
    shells = ("bash", "zsh", "fish")
    script.add_argument(
        "shell", choices=shells, metavar="|".join(shells), help="the shell that is to read it"
    )
    return parser


def _common(parser: argparse.ArgumentParser, *, socket: object, timeout: object, json: object) -> None:
    """Options that may stand before and behind the command: behind, only what is given counts."""
    add = parser.add_argument
    add("--socket", metavar="PATH", default=socket, help=f"default $GPULEASE_SOCKET, else {DEFAULT_SOCKET}")
    add("--timeout", metavar="DUR", type=value_of(parse_duration), default=timeout, help="deadline of a call")
    add("--json", action="store_true", default=json, help="print the response body")


_Add = Callable[..., Parser]


def _add_reading(command: _Add) -> None:
    add_filters(
        command("status", "the node, its devices as bars, and who holds what"),
        *("user", "state", "device", "since"),
        states=LEASE_STATES,
    )
    add_filters(command("devices", "the devices and what is free"), "state", "device", states=DEVICE_STATES)
    command("quota", "what you may hold at once, and what counts of it now")
    numbering = command("numbering", "every number and name of each device")
    numbering.add_argument(
        "id", metavar="LEASE", nargs="?", help=f"with its own count: {ID_FORMS} (default: where we run)"
    )
    add_filters(numbering, "device")
    _add_top(command)
    command("show", "one lease, and what befell it").add_argument("id", metavar="ID", help=ID_FORMS)
    ended = command("history", "leases that ended, of the last week unless --since says otherwise")
    add_filters(ended, "user", "state", "device", "since", states=ENDED_STATES)
    events = command("events", "who did what, when and why; with --json one a line")
    add_filters(events, "user", "device", "since")
    events.add_argument(
        "--after", type=value_of(positive), default=0, metavar="N", help="only later than event N"
    )
    events.add_argument("--follow", "-f", action="store_true", help="go on as they come")


def _add_top(command: _Add) -> None:
    top = command("top", "the node as it is now, again and again; q quits")
    add_filters(top, "user", "state", "device", "since", states=LEASE_STATES)
    top.add_argument(
        "--interval", type=value_of(parse_duration), default=2, metavar="DUR", help="look this often (2s)"
    )
    top.add_argument("--once", action="store_true", help="print one picture, as into a pipe")


def _add_leasing(command: _Add) -> None:
    grant = command("grant", "take a lease that lives by renewals")
    add_request_options(grant)
    grant.add_argument(
        "--cdi",
        nargs="?",
        const="docker",
        choices=("docker", "podman", "env"),
        help="as a CDI device: print options for docker (default) or podman, or a compose file's .env",
    )
    adopt = command("adopt", "take in what already runs; memory stays advisory")
    adopt.add_argument("target", metavar="PID|CGROUP", help="a process, or the path of a cgroup")
    add_request_options(adopt)
    renew = command("renew", "put off the end of a lease")
    renew.add_argument("id", metavar="ID", help=ID_FORMS)
    renew.add_argument(
        "--ttl", type=value_of(parse_duration), metavar="DUR", help="until then (default: as before)"
    )
    command("release", "end a lease").add_argument("id", metavar="ID", help=ID_FORMS)
    env = command("env", "the lease's environment, for eval")
    env.add_argument("id", metavar="ID", nargs="?", default="mine", help=f"{ID_FORMS} (default mine)")


def _add_running(command: _Add) -> None:
    run = command("run", "a command in a lease of its own", "gpulease run [options] -- CMD [ARG ...]")
    add_request_options(run)
    run.add_argument(
        "--private-ipc", action="store_true", help="shared memory of its own, like --require ipc=private"
    )
    execute = command("exec", "a command in a lease there is", "gpulease exec ID -- CMD [ARG ...]")
    execute.add_argument("id", metavar="ID", help=ID_FORMS)


def _add_engines(command: _Add, with_options: bool) -> None:
    """To be listed, and for their help: what stands behind an engine is read as the engine's client does."""
    for engine in ENGINES:
        usage = f"gpulease {engine} [{engine}'s options] run|create [options, {engine}'s too] IMAGE [COMMAND]"
        parser = command(engine, f"a container of {engine} in a lease of its own", usage)
        if with_options:
            from gpulease.containers.wanted import add_options

            add_options(parser)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The program; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a locale that lacks a character must not end us
            stream.reconfigure(errors="backslashreplace")
    out, err = Screen(sys.stdout), Screen(sys.stderr)
    head, tail = _split(words)
    # Known before the words are understood, for what is wrong with them counts as before the start, too.
    starts_a_command = any(word in _WITH_COMMAND for word in head)
    args: Optional[argparse.Namespace] = None
    try:
        args = _parsed(head, tail)
        starts_a_command = args.command in _WITH_COMMAND
        code = _dispatch(args, tail, out, err)
        out.flush()
        return code
    except GpuleaseError as error:
        _explain(error, args, out, err)
        return FAILED_BEFORE_START if starts_a_command else error.exit_code
    except Interrupted as signalled:
        return 128 + signalled.number
    except KeyboardInterrupt:
        return FAILED_BEFORE_START if starts_a_command else 130
    except BrokenPipeError:
        # The reader of our output has enough; the interpreter must not complain at its own flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _split(words: list[str]) -> tuple[list[str], Optional[list[str]]]:
    """What is ours, and the words behind an engine's name, or behind the first ``--``; None without one."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in _WITH_VALUE else 1
    if words[at : at + 1] and words[at] in ENGINES:
        return words[: at + 1], words[at + 1 :]
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _parsed(words: list[str], tail: Optional[list[str]]) -> argparse.Namespace:
    args, unknown = build_parser(with_engines="--help" in words).parse_known_args(words)
    if unknown:
        why = f"unrecognized arguments: {' '.join(unknown)}"
        if args.command in _WITH_COMMAND and tail is None:
            why += "; the command goes behind --"
        raise CommandLineError(why, f"gpulease {args.command}")
    return args


def _dispatch(args: argparse.Namespace, tail: Optional[list[str]], out: Screen, err: Screen) -> int:
    call = Invocation(Client(args.socket, args.timeout), out, err, args)
    if args.command in ENGINES:
        return _start_container(call, tail or [])
    if args.command in _WITH_COMMAND:
        if not tail:
            raise UsageError(f"say what to {args.command}: gpulease {args.command} … -- CMD [ARG ...]")
        return _start(call, tail)
    if tail is not None:
        raise UsageError(f"{args.command} takes no command behind --")
    handler: Callable[[Invocation], int] = getattr(import_module(_module(args.command)), args.command)
    return handler(call)


def _module(command: str) -> str:
    if command in ("top", "completion"):
        return f"gpulease.{command}"
    return "gpulease.leasing" if command in _LEASING else "gpulease.reading"


def _start(call: Invocation, command: list[str]) -> int:
    from gpulease.ids import lease_id
    from gpulease.options import request_fields, whole_device
    from gpulease.run import Runner, execute

    if call.args.command == "exec":
        execute(call.client, lease_id(call.client, call.args.id), command)
    fields = request_fields(call.args)
    if call.args.private_ipc:
        fields["require"] = {**(fields["require"] or {}), "ipc": "private"}
    note = whole_device(call.args)
    if note:
        call.err.line(f"gpulease: {note}")
    return Runner(call.client, call.err).run(command, fields, show=call.args.json)


def _start_container(call: Invocation, words: list[str]) -> int:
    from gpulease.containers.commandline import HelpAsked
    from gpulease.containers.wrapper import Wrapper

    try:
        wrapper = Wrapper(call.client, call.out, call.err, os.environ)
        return wrapper.start(call.args.command, words, show=call.args.json)
    except HelpAsked:
        build_parser().parse_args([call.args.command, "--help"])
    return 0


def _explain(error: GpuleaseError, args: Optional[argparse.Namespace], out: Screen, err: Screen) -> None:
    if isinstance(error, CommandLineError):
        err.line(f"`{error.program} --help` lists what there is")
    elif args is not None and args.json and args.command not in _WITH_COMMAND:
        served = error.problem if isinstance(error, AnswerError) else {"detail": str(error)}
        problem = {"code": error.code, **served}
        Invocation(Client(), out, err, args).body(problem)
        out.flush()
    show_error(err, error)
    err.flush()
