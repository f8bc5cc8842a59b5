"""The options that say what is wanted, and the request that they make."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Optional, TypeVar

from gpulease.errors import UsageError
from gpulease.sizes import PERCENT_FORMS, SIZE_FORMS, parse_duration, parse_percent, parse_size

_GUARANTEES = {
    "memory": ("kernel", "supervised", "hook", "advisory"),
    "compute": ("partition", "exclusive", "hook", "mask", "none"),
    "visibility": ("cgroup", "acl", "environment"),
    "ipc": ("private", "shared"),
}
_REQUIRE_FORMS = "memory=kernel, compute=mask, visibility=cgroup, ipc=private or several with commas"
_Value = TypeVar("_Value")


def value_of(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """*parse* for argparse, which shows the message of no other exception than its own."""

    def parsed(text: str) -> _Value:
        try:
            return parse(text)
        except ValueError as wrong:
            raise argparse.ArgumentTypeError(str(wrong)) from None

    return parsed


def positive(text: str) -> int:
    """A whole number of 1 or more.

    Raises:
        ValueError: it is not.
    """
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 1 << 31:
        raise ValueError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def vram(text: str) -> dict[str, Any]:
    """The request's field for ``--vram``."""
    try:
        if text.strip().endswith("%"):
            return {"vram_percent": parse_percent(text)}
        return {"vram_bytes": parse_size(text)}
    except ValueError as wrong:
        raise ValueError(f"{wrong}; or {SIZE_FORMS if '%' in text else PERCENT_FORMS}") from None


def compute_units(text: str) -> dict[str, Any]:
    """The request's field for ``--cu``."""
    if text == "shared":
        return {"cu_shared": True}
    try:
        return {"cu_percent": parse_percent(text)} if text.endswith("%") else {"cus": positive(text)}
    except ValueError:
        raise ValueError(f"{text!r} is neither a number of CUs, {PERCENT_FORMS}, nor 'shared'") from None


def requirements(text: str) -> dict[str, str]:
    """The request's ``require``: the least that must hold the slice."""
    floor = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        kind, _, level = item.partition("=")
        if level not in _GUARANTEES.get(kind, ()):
            known = "|".join(_GUARANTEES.get(kind, ())) or _REQUIRE_FORMS
            raise ValueError(f"{item!r}: expected {kind + '=' if kind in _GUARANTEES else ''}{known}")
        floor[kind] = level
    return floor


def named(text: str) -> str:
    """A name, which is more than blanks.

    Raises:
        ValueError: it is not; often a variable of a script that was never set.
    """
    if not text.strip():
        raise ValueError("it is empty")
    return text


def listed(text: str) -> list[str]:
    """The items of a comma list; empty ones mean nothing."""
    return [item for item in (part.strip() for part in text.split(",")) if item]


def add_request_options(parser: argparse.ArgumentParser, spelled: Callable[[str], str] = str) -> None:
    """The options of a request; *spelled* renames those that must not be another program's."""

    def add(name: str, **settings: Any) -> None:
        parser.add_argument(spelled(name), dest=name[2:].replace("-", "_"), **settings)

    add("--gpus", type=value_of(positive), metavar="N", help="as many devices, one slice on each (default 1)")
    add("--vram", type=value_of(vram), default={}, metavar="SIZE|N%", help="memory of each slice")
    add("--cu", type=value_of(compute_units), default={}, metavar="N|N%|shared", help="CUs of each slice")
    add("--queues", type=value_of(positive), metavar="N", help="queue slots of each slice")
    add("--partition", action="store_true", help="a whole compute partition of a card, held by the hardware")
    add("--exclusive", action="store_true", help="an idle device only, and nobody joins")
    add("--shape", choices=("even", "exact"), help="whole rows (default), or just the number asked for")
    add("--placement", choices=("binpack", "spread", "topology", "exclusive"), help="which devices to prefer")
    add("--numa-bind", action="store_true", help="all devices on one NUMA node, or none")
    add("--link-bind", action="store_true", help="all devices linked by XGMI, or none")
    for name, what in (
        ("type", "product or gfx name, or glob"),
        ("device", "names as `gpulease numbering` has"),
    ):
        add(f"--{name}", action="append", type=listed, default=[], metavar="LIST", help=f"only these: {what}")
        add(f"--not-{name}", action="append", type=listed, default=[], metavar="LIST", help="none of these")
    add("--class", type=value_of(named), metavar="NAME", help="one of the site's classes (`gpulease quota`)")
    add("--priority", choices=("high", "normal", "low"), help="place in the queue")
    add("--queue-priority", choices=("high", "normal", "low"), help="the most that hardware queues get")
    add("--require", type=value_of(requirements), metavar="KIND=LEVEL,…", help=f"a floor: {_REQUIRE_FORMS}")
    add(
        "--ttl", type=value_of(parse_duration), metavar="DUR", help="the lease ends after this unless renewed"
    )
    add("--wait", type=value_of(parse_duration), metavar="DUR", help="queue as long when it does not fit now")
    add("--request-id", type=value_of(named), metavar="ID", help="the same id again gives the same lease")


def request_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of ``POST /v1/leases`` that the options ask for; absent ones are the agent's to choose."""
    if args.exclusive and args.placement not in (None, "exclusive"):
        raise UsageError(f"--exclusive and --placement {args.placement} contradict each other")
    if "cu_shared" in args.cu and not args.vram:
        raise UsageError("--cu shared needs --vram: of the shared CUs nothing else bounds a slice")
    if args.partition and (args.vram or args.cu):
        raise UsageError("--partition takes a whole compute partition: leave --vram and --cu out")
    one: dict[str, Any] = {**args.vram, **args.cu, **({"partition": True} if args.partition else {})}
    optional = {"count": args.gpus, "queue_slots": args.queues, "shape": args.shape}
    one.update({name: value for name, value in optional.items() if value is not None})
    for name in ("device", "not_device", "type", "not_type"):
        items = [item for group in getattr(args, name) for item in group]
        if items:
            one[name] = items
    return {
        "slices": [one],
        "placement": "exclusive" if args.exclusive else args.placement,
        "numa_bind": args.numa_bind or None,
        "link_bind": args.link_bind or None,
        "class_name": getattr(args, "class"),
        "priority": args.priority,
        "queue_priority": args.queue_priority,
        "require": args.require or None,
        "ttl_seconds": args.ttl,
        "wait_seconds": args.wait,
        "request_id": args.request_id,
    }


def whole_device(args: argparse.Namespace) -> Optional[str]:
    """What to tell a user who named no part of a device; None when they did, or a class, which may."""
    if args.vram or args.cu or args.partition or getattr(args, "class"):
        return None
    devices = "a whole device" if (args.gpus or 1) == 1 else f"{args.gpus} whole devices"
    return f"neither --vram nor --cu: taking {devices}, exclusively, unless a default class says less"
