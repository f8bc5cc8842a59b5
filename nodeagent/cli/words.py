"""What is wrong with the words of a command line, said as every other fault is: one line, and exit 2."""

from __future__ import annotations

from typing import Any

import click
from click.exceptions import NoArgsIsHelpError


class WrongWords(click.ClickException):
    """``nodeagent: FIELD: reason``; the field is an option or an argument, or `Usage` where it is none."""

    exit_code = 2

    def __init__(self, wrong: click.UsageError) -> None:
        field = _field(wrong)
        super().__init__(f"{field or 'Usage'}: {_reason(wrong) if field else wrong.format_message()}")

    def show(self, file: Any = None) -> None:
        click.echo(f"nodeagent: {self.message}", file=file, err=True)


class Plain(click.Group):
    """A program whose commands' wrong words are said so."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*args, **more)
        except NoArgsIsHelpError:
            raise
        except click.UsageError as wrong:
            raise WrongWords(wrong) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NoArgsIsHelpError:
            raise
        except click.UsageError as wrong:
            raise WrongWords(wrong) from None


def _field(wrong: click.UsageError) -> str | None:
    """The option or argument that the fault is about."""
    if isinstance(wrong, click.NoSuchOption):
        return wrong.option_name
    if isinstance(wrong, click.BadOptionUsage):
        return wrong.option_name
    if not isinstance(wrong, click.BadParameter) or wrong.param is None:
        return None
    name = max(wrong.param.opts, key=len)
    return name if name.startswith("-") else wrong.param.make_metavar(wrong.ctx)  # type: ignore[arg-type]


def _reason(wrong: click.UsageError) -> str:
    if isinstance(wrong, click.MissingParameter):
        return "has to be given"
    if isinstance(wrong, click.NoSuchOption):
        close = f"; did you mean {', '.join(wrong.possibilities)}?" if wrong.possibilities else ""
        return f"there is no such option{close}"
    return wrong.message
