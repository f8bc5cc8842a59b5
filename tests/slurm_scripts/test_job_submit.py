"""job_submit.lua: what a job asks for, in a word that only the site writes. Its texts are a user's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.domain.slurm_request import asked_in

HERE = Path(__file__).resolve().parent
MODULE = HERE.parents[1] / "client/slurm/job_submit.lua"
# Lua 5.1 is what Debian's Slurm is built with; the others where they are there.
LUAS = [name for name in ("lua5.1", "lua5.3", "lua5.4") if shutil.which(name)]
NO_VAL, NO_VAL16 = 2**32 - 2, 2**16 - 2
# What slurmctld passes where a user says nothing (22.05).
UNSET = {
    "num_tasks": NO_VAL,
    "ntasks_per_node": NO_VAL16,
    "min_nodes": NO_VAL,
    "max_nodes": NO_VAL,
    "shared": NO_VAL16,
}


@dataclass(frozen=True)
class Answer:
    """Why a job was refused, "" for not, and its texts afterwards; None: left alone, or none at all."""

    why: str
    extra: str | None
    comment: str | None


@dataclass
class Lua:
    """The module in an interpreter of its own."""

    process: subprocess.Popen[bytes]

    def __call__(self, function: str, *tables: Mapping[str, Any], environment: str | None = None) -> Answer:
        """Call *function* with job tables; *environment* is GPULEASE of a batch job."""
        words = " - ".join(" ".join(word(*item) for item in table.items()) for table in tables)
        words += "" if environment is None else " " + word("GPULEASE", environment, "e")
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{function} {words}\n".encode())
        self.process.stdin.flush()
        answers = [text_of(one) for one in self.process.stdout.readline().decode().split()]
        assert len(answers) == 3, "the interpreter has ended"
        return Answer(answers[0] or "", answers[1], answers[2])

    def submit(self, environment: str | None = None, **job: Any) -> Answer:
        return self("submit", {**UNSET, **job}, environment=environment)

    def modify(self, change: Mapping[str, Any], **job: Any) -> Answer:
        return self("modify", {**UNSET, **change}, job)


def word(name: str, value: str | int, kind: str | None = None) -> str:
    kind = kind or ("n" if isinstance(value, int) else "s")
    text = f"{kind}{value}".encode("utf-8", "surrogateescape")
    return f"{name.encode().hex()}={text.hex()}"


def text_of(answer: str) -> str | None:
    return None if answer == "-" else bytes.fromhex(answer.rstrip(".")).decode("utf-8", "surrogateescape")


@pytest.fixture(scope="module", params=LUAS or ["lua5.1"])
def interpreter(request: pytest.FixtureRequest) -> Iterator[dict[str, Lua]]:
    """An interpreter for each field that may carry the word."""
    if not LUAS:
        pytest.skip("needs lua5.1: apt-get install lua5.1")
    started = {
        field: subprocess.Popen(
            [request.param, str(HERE / "job_submit_server.lua"), str(MODULE), field],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for field in ("extra", "comment")
    }
    yield {field: Lua(process) for field, process in started.items()}
    for process in started.values():
        process.communicate()


@pytest.fixture(scope="module")
def lua(interpreter: dict[str, Lua]) -> Lua:
    """The module that writes into `extra`."""
    return interpreter["extra"]


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        ({"tres_per_node": "gres:shard:2"}, "shards=2"),
        ({"tres_per_node": "gres/shard:2"}, "shards=2"),
        ({"tres_per_node": "gres/shard=2"}, "shards=2"),
        ({"tres_per_node": "gres:shard:mi300x:3"}, "shards=3"),
        ({"tres_per_node": "gres/shard:7900xtx=3"}, "shards=3"),
        ({"tres_per_node": "gres:gpu:0,gres:shard:1"}, "shards=1"),
        ({"tres_per_node": "gres:shard"}, "shards=1"),
        ({"tres_per_node": "gres:shard:mi300x"}, "shards=1"),
        ({"tres_per_node": "gres:craynetwork:1,gres:shard:4(S:0-1)"}, "shards=4"),
        ({"tres_per_job": "gres:shard:3", "max_nodes": 1}, "shards=3"),
        ({"tres_per_task": "gres:shard:2", "ntasks_per_node": 3, "max_nodes": 1}, "shards=6"),
        ({"tres_per_task": "gres:shard:2", "ntasks_per_node": 3, "min_nodes": 2, "max_nodes": 2}, "shards=6"),
        ({"tres_per_task": "gres:shard:2", "ntasks_per_node": 3, "num_tasks": 6, "max_nodes": 2}, "shards=6"),
        ({"tres_per_task": "gres:shard:1", "ntasks_per_node": 8, "num_tasks": 1, "max_nodes": 1}, "shards=1"),
        ({"tres_per_task": "cpu=2,gres/shard=2", "num_tasks": 4, "max_nodes": 1}, "shards=8"),
        ({"tres_per_node": "gres:gpu:1"}, "gpus"),
        ({"tres_per_node": "gres/gpu:mi300x:8"}, "gpus"),
        ({"tres_per_job": "gres:gpu:4"}, "gpus"),
        ({"tres_per_socket": "gres:gpu:1"}, "gpus"),
        ({"tres_per_task": "gres:gpu:1"}, "gpus"),
        ({"shared": 0}, "gpus"),
        ({"shared": 0, "tres_per_node": "gres:shard:1"}, "shards=1"),
    ],
)
def test_what_slurm_charges_for_is_what_is_written(lua: Lua, asks: dict[str, Any], says: str) -> None:
    """Every spelling of a count, for a node; typed GPUs and whole nodes are whole GPUs."""
    assert lua.submit(**asks) == Answer("", f"gpulease:{says}", None)


def test_a_job_without_gpus_is_left_alone(lua: Lua) -> None:
    """No word, and its own texts stay as they are."""
    assert lua.submit(tres_per_node="gres:sharding:2,license:1") == Answer("", None, None)
    assert lua.submit(extra="mine", comment=" a ; b ") == Answer("", "mine", " a ; b ")


@pytest.mark.parametrize(
    ("asks", "why"),
    [
        ({"tres_per_job": "gres:shard:4"}, "--gres=shard:N"),
        ({"tres_per_job": "gres:shard:4", "max_nodes": 2}, "--gres=shard:N"),
        ({"tres_per_socket": "gres:shard:1"}, "in one way"),
        ({"tres_per_task": "gres:shard:1"}, "--ntasks-per-node"),
        ({"tres_per_task": "gres:shard:1", "num_tasks": 4, "max_nodes": 2}, "--ntasks-per-node"),
        ({"tres_per_task": "gres:shard:1", "ntasks_per_node": 8}, "--ntasks-per-node"),
        ({"tres_per_task": "gres:shard:1", "ntasks_per_node": 8, "num_tasks": 1}, "--ntasks-per-node"),
        (
            {"tres_per_task": "gres:shard:1", "ntasks_per_node": 8, "num_tasks": 9, "max_nodes": 2},
            "--ntasks-per-node",
        ),
        (
            {"tres_per_task": "gres:shard:1", "ntasks_per_node": 8, "min_nodes": 1, "max_nodes": 2},
            "--ntasks-per-node",
        ),
        (
            {"tres_per_task": "gres:shard:1", "tres_per_node": "gres:shard:1", "ntasks_per_node": 1},
            "in one way",
        ),
        ({"tres_per_node": "gres:shard:7,gres:shard:1"}, "once"),
        ({"tres_per_node": "gres:shard:a:7,gres:shard:b:1"}, "once"),
        ({"tres_per_node": "gres:gpu:1,gres:shard:1"}, "not for both"),
        ({"tres_per_node": "gres:shard:2000"}, "so many shards"),
        ({"tres_per_node": "gres:shard:" + "9" * 40}, "so many shards"),
        ({"tres_per_node": "gres:gpu:1", "extra": "gpulease:cu=10%"}, "for shards"),
        ({"comment": "gpulease:cu=10%"}, "for shards"),
    ],
)
def test_what_cannot_be_told_is_refused_with_what_to_write(lua: Lua, asks: dict[str, Any], why: str) -> None:
    """A count that no node could know is no guess: the user is told how to ask."""
    assert why in lua.submit(**asks).why


@pytest.mark.parametrize(
    "tres",
    [
        "shard:7,gres:shard:1",
        "xgres:shard:1,gres:gpu:1",
        "xgres:shard:1,gpu:1",
        "gres:shard:1,gpu:1",
        "license:gres:shard:1",
        "gres:other:gres:shard:1",
        " gres:shard:2",
        "gres:shard: 3",
        "gres:shard:010",
        "gres:shard:1:7",
        "gres:shard:a:1:7",
        "gres:shard:2\n",
        "gres:Shard:2",
        "GRES:shard:2",
        "gres:shard=a=2",
        "gres:shard:",
        "gres:gpu:01",
    ],
)
@pytest.mark.parametrize("key", ["tres_per_node", "tres_per_job", "tres_per_task"])
def test_what_slurm_may_count_in_another_way_is_refused(lua: Lua, key: str, tres: str) -> None:
    """Slurm passes over what is none of its own form, also before a count that it charges for."""
    assert lua.submit(**{key: tres, "shared": 0, "num_tasks": 1, "max_nodes": 1}).why.startswith("ask for ")


@pytest.mark.parametrize(
    ("wish", "written"),
    [
        ("vram=8G", ",vram=8G"),
        ("cu=25%", ",cu=25%"),
        ("cu=12.5%,vram=8GiB", ",vram=8GiB,cu=12.5%"),
        ("vram=500kB", ",vram=500kB"),
        ("shards=8", ""),
        ("shards=8,vram=1T", ",vram=1T"),
        ("gpus", ""),
    ],
)
@pytest.mark.parametrize("how", ["extra", "comment", "environment"])
def test_a_wish_within_the_shards_is_taken_over(lua: Lua, how: str, wish: str, written: str) -> None:
    """In either text or a batch job's environment; a count in it is not the user's to say."""
    given = wish if how == "environment" else f"a gpulease:{wish};b"
    answer = lua.submit(tres_per_node="gres:shard:2", **{how: given})
    word = f"gpulease:shards=2{written}"
    assert answer.why == ""
    assert answer.extra == (f"{word} a;b" if how == "extra" else word)
    assert answer.comment == ("a;b" if how == "comment" else None)
    assert asked_in(answer.extra or "") is not None


@pytest.mark.parametrize(
    "wish",
    [
        "",
        "vram",
        "vram=",
        "vram=0",
        "vram=-1",
        "vram=8X",
        "vram=8KB",
        "vram=8g",
        "vram=1e9",
        "vram=0x10",
        "vram=1234567890123456",
        "cu=25",
        "cu=0%",
        "cu=101%",
        "cu=1e1%",
        "cu=12.345%",
        "cu=nan%",
        "vram=8G,vram=9G",
        "vram=8G,",
        ",",
        "queues=3",
        "shards=2x",
        "$(id)",
        "`id`",
        "vram=8G\x1b[31m",
    ],
)
def test_what_is_no_wish_is_refused(lua: Lua, wish: str) -> None:
    """Strictly read; the refusal says how to write one, and repeats nothing of the text."""
    assert lua.submit(tres_per_node="gres:shard:2", comment=f"gpulease:{wish}").why == (
        "a gpulease: word of yours is not understood: write gpulease:vram=8G,cu=25%, or only one of the two,"
        " within the shards that you ask for"
    )


def test_two_wishes_are_refused(lua: Lua) -> None:
    """Which one is meant is not guessed; the same one twice is one."""
    asks = {"tres_per_node": "gres:shard:2"}
    assert "say it once" in lua.submit(**asks, comment="gpulease:cu=5%", extra="gpulease:cu=6%").why
    assert lua.submit(**asks, comment="gpulease:cu=5%", extra="gpulease:cu=5%").why == ""


def test_the_word_comes_first(interpreter: dict[str, Lua]) -> None:
    """The agent looks at 200 characters: a long comment must not hide the word."""
    answer = interpreter["comment"].submit(tres_per_node="gres:shard:2", comment="x" * 5000)
    found = asked_in(answer.comment or "")
    assert found is not None and found.shards == 2
    assert answer.comment == "gpulease:shards=2 " + "x" * 5000


RECORD = {"tres_per_node": "gres:shard:2", "extra": "gpulease:shards=2,vram=8G note"}


@pytest.mark.parametrize(
    ("change", "extra"),
    [
        ({}, None),
        ({"extra": "new"}, "gpulease:shards=2,vram=8G new"),
        ({"extra": ""}, "gpulease:shards=2,vram=8G"),
        ({"extra": "gpulease:shards=8"}, "gpulease:shards=2,vram=8G"),
        ({"extra": "gpulease:gpus x"}, "gpulease:shards=2,vram=8G x"),
        ({"extra": "gpulease:cu=5%"}, "gpulease:shards=2,cu=5%"),
        ({"comment": "hello"}, "gpulease:shards=2,vram=8G note"),
        ({"tres_per_node": "gres:shard:2"}, None),
        ({"num_tasks": 4, "max_nodes": 1}, None),
        ({"shared": 0}, None),
        ({"tres_per_socket": "gres:craynetwork:1"}, None),
        ({"time_limit": 5}, None),
    ],
)
def test_a_change_keeps_the_word_true(lua: Lua, change: dict[str, Any], extra: str | None) -> None:
    """scontrol update: whatever is said of the text or the size, the word says what is charged for."""
    answer = lua.modify(change, **RECORD)
    assert (answer.why, answer.extra) == ("", extra)


@pytest.mark.parametrize(
    ("record", "change"),
    [
        (RECORD, {"tres_per_node": "gres:shard:4"}),
        (RECORD, {"tres_per_node": "gres:shard:1"}),
        (RECORD, {"tres_per_node": "gres:gpu:1"}),
        (RECORD, {"tres_per_node": ""}),
        (RECORD, {"tres_per_node": "xgres:shard:1"}),
        (RECORD, {"tres_per_job": "gres:shard:1"}),
        ({}, {"tres_per_node": "gres:shard:1"}),
        ({"tres_per_task": "gres:shard:1", "num_tasks": 1}, {"num_tasks": 8}),
        ({"tres_per_job": "gres:shard:1", "max_nodes": 1}, {"max_nodes": 2}),
    ],
)
def test_a_change_of_the_size_is_refused(lua: Lua, record: dict[str, Any], change: dict[str, Any]) -> None:
    """Slurm may take over the word and fail at the shards: no change has both."""
    assert "submit it again" in lua.modify({**change, "comment": "x"}, **record).why


def test_what_only_the_submission_showed_is_kept(lua: Lua) -> None:
    """A record does not tell tasks on a node, or a node to oneself: another text changes neither."""
    for record in (
        {"tres_per_task": "gres:shard:2", "extra": "gpulease:shards=6"},
        {"extra": "gpulease:gpus"},
    ):
        word = record["extra"]
        assert lua.modify({"extra": "gpulease:shards=9 new"}, **record).extra == f"{word} new"


def test_a_wish_that_cannot_be_granted_is_refused_in_a_change(lua: Lua) -> None:
    """Not swallowed: who asks for less must hear that it does not come about."""
    assert lua.modify({"extra": "gpulease:cu=5%"}, tres_per_node="gres:gpu:1", extra="gpulease:gpus").why


OURS = ["gpulease:", "gpulease", "shards=", "8", "gpus", "vram=", "8G", "cu=", "5%", ",", ";", ":", "G"]
BLANKS = [" ", "\n", "\t", "\v", "\r", "\u00a0", "\u2028", "\x1c", "\x85"]  # Lua takes some for none
HOSTILE = ["\x1b[31m", "'", '"', "$(id)", "`", "\\", "%s", "%"]
PIECES = st.sampled_from(OURS + BLANKS + HOSTILE)
TEXTS = st.lists(PIECES, max_size=12).map("".join) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=30
)


@pytest.mark.parametrize("field", ["extra", "comment"])
@given(TEXTS, TEXTS, st.integers(0, 9))
def test_no_text_gets_more_than_the_shards(
    interpreter: dict[str, Lua], field: str, extra: str, comment: str, n: int
):
    """Threat 3: whatever a user writes, what the agent reads back is the count; or the job is refused."""
    lua = interpreter[field]
    job = {"extra": extra, "comment": comment, **({"tres_per_node": f"gres:shard:{n}"} if n else {})}
    answer = lua.submit(**job)
    assert not answer.why.startswith("failed")
    if answer.why:
        return
    text = (answer.extra if field == "extra" else answer.comment) or ""
    assert text.count("gpulease:") == bool(n)
    found = asked_in(text)
    assert (found and found.shards) == (n or None)
    record = {"tres_per_node": f"gres:shard:{n}"} if n else {}
    changed = lua.modify({field: comment + " " + extra}, **record, **{field: text})
    text = (changed.extra if field == "extra" else changed.comment) or ""
    found = asked_in(text)
    assert not changed.why.startswith("failed")
    assert changed.why or (found and found.shards) == (n or None)


@pytest.mark.parametrize(
    "piece", ["a", " ", ";", "gpulease:", "gpulease", ":", "1", ",", "%", "x gpulease:cu=5% "]
)
def test_a_huge_text_holds_nobody_up(lua: Lua, piece: str) -> None:
    """slurmctld waits while the module looks: a megabyte of anything is read in one pass."""
    text = piece * (1_000_000 // len(piece))
    for job in ({"comment": text}, {"extra": text}, {"comment": f"gpulease:cu=5% {text}"}):
        answer = lua.submit(tres_per_node="gres:shard:2", **job)
        assert answer.why or asked_in(answer.extra or "")
    assert not lua.submit(tres_per_node="gres:shard:" + text).why.startswith("failed")
