"""The routes of Slurm's scripts: octets in, plain lines out."""

from __future__ import annotations

import pytest

from nodeagent.domain.slurm import Verdict, Word

BODY = b"SLURM_JOB_ID=42\0SLURM_JOB_COMMENT=a\nb=`id`\0GPULEASE_AT=12.34\0"
OCTETS = {"content_type": "application/octet-stream"}


@pytest.mark.parametrize("script", ["prolog", "epilog"])
def test_a_script_is_answered_by_a_word_and_a_line(agent, root, script):
    """The answer is two lines of plain text, whatever the body holds, and the body arrives as it was."""
    agent.slurm.verdict = Verdict(Word.WAIT, "lease 7 is being released")
    answer = root.post(f"/v1/slurm/{script}", data=BODY, **OCTETS)
    assert (answer.status_code, answer.text) == (200, "wait\nlease 7 is being released\n")
    assert answer.content_type == "text/plain; charset=us-ascii"
    assert agent.slurm.calls == [(script, BODY, 4.0)]


@pytest.mark.parametrize("script", ["prolog", "epilog"])
def test_only_administrators_speak_for_jobs(agent, user, script):
    """A user's call about a job is refused before its body is read."""
    assert user.post(f"/v1/slurm/{script}", data=BODY, **OCTETS).status_code == 403
    assert agent.slurm.calls == []


def test_a_task_gets_lines_to_print(agent, user):
    """Any user may ask for the task that asks; the lines come as they are."""
    agent.slurm.lines = ("export GPULEASE_ID=7", "unset HIP_VISIBLE_DEVICES")
    answer = user.post("/v1/slurm/task", data=b"SLURM_JOB_ID=42\0", **OCTETS)
    assert answer.text == "export GPULEASE_ID=7\nunset HIP_VISIBLE_DEVICES\n"


def test_a_crowd_of_scripts_is_answered_at_once(agent, root, waiting, caller_of):
    """Where no seat is free the script is told at once what holds now, and asks again itself."""
    with waiting.seat(caller_of(0)), waiting.seat(caller_of(0)):
        root.post("/v1/slurm/prolog", data=BODY, **OCTETS)
    assert agent.slurm.calls == [("prolog", BODY, 0)]


def test_a_body_of_another_type_is_refused(root):
    """A body that says it is JSON, or nothing, is not taken for an environment."""
    assert root.post("/v1/slurm/prolog", data=b"{}", content_type="application/json").status_code == 415
    assert root.post("/v1/slurm/prolog", data=BODY).status_code == 415
