"""Problem documents for what is refused before there is a request to route."""

from __future__ import annotations

from http import HTTPStatus

from nodeagent.api.answers import ProblemAnswer


def raw_problem(status: int, code: str, detail: str, *, retry_after: int | None = None) -> bytes:
    """A whole HTTP response."""
    phrase = HTTPStatus(status).phrase
    answer = ProblemAnswer(
        type=f"urn:nodeagent:problem:{code}", title=phrase, status=status, code=code, detail=detail
    )
    body = answer.model_dump_json(exclude_unset=True).encode("utf-8")
    head = [
        f"HTTP/1.1 {status} {phrase}",
        "Content-Type: application/problem+json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if retry_after is not None:
        head.append(f"Retry-After: {retry_after}")
    return "\r\n".join([*head, "", ""]).encode("ascii") + body
