"""Scripts that complete the command's words in a shell, made from its own parser: nothing is asked at a Tab.

What follows ``--`` in ``run`` and ``exec``, and an engine's own words, are for the shell to complete as ever.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpulease.command import Invocation


@dataclass(frozen=True)
class Option:
    """One option, in every spelling that it has."""

    spellings: tuple[str, ...]
    help: str
    takes: str  # the metavar of its value; "" without one
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """One command. *words*: what its first positional argument may be, where only some words may."""

    name: str
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...]


def completion(call: Invocation) -> int:
    from gpulease.cli import build_parser

    for line in SCRIPTS[call.args.shell](commands(build_parser())).splitlines():
        call.out.line(line)
    return 0


def commands(parser: argparse.ArgumentParser) -> tuple[Command, ...]:
    """Every command of *parser*, in its order."""
    group = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    helps = {one.dest: one.help or "" for one in group._choices_actions}
    return tuple(_command(name, helps.get(name, ""), inner) for name, inner in group.choices.items())


def _command(name: str, what: str, parser: argparse.ArgumentParser) -> Command:
    actions = [one for one in parser._actions if one.help is not argparse.SUPPRESS]
    words = next((one.choices for one in actions if not one.option_strings and one.choices), ())
    options = tuple(_option(one) for one in actions if one.option_strings)
    return Command(name, what, options, tuple(map(str, words)))


def _option(action: argparse.Action) -> Option:
    choices = tuple(map(str, action.choices or ()))
    takes = "" if action.nargs == 0 else str(action.metavar or "VALUE")
    return Option(tuple(action.option_strings), (action.help or "").replace("%%", "%"), takes, choices)


def bash(found: Sequence[Command]) -> str:
    """For `bash-completion`'s directory, or ``source <(gpulease completion bash)``."""
    spelled = {one.name: " ".join(s for option in one.options for s in option.spellings) for one in found}
    lines = ["# bash completion of gpulease: `gpulease completion bash` writes it.", "_gpulease() {"]
    lines += ["    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command='' at"]
    lines += ["    COMPREPLY=()", "    for ((at = 1; at < COMP_CWORD; at++)); do"]
    lines += [
        "        case ${COMP_WORDS[at]} in",
        "        --) return ;;",
        "        --socket|--timeout) at=$((at + 1)) ;;",
    ]
    lines += ["        -*) ;;", "        *) command=${COMP_WORDS[at]}; break ;;", "        esac", "    done"]
    lines += ["    for ((; at < COMP_CWORD; at++)); do [[ ${COMP_WORDS[at]} == -- ]] && return; done"]
    lines += ["    case $command in"]
    top = f"{' '.join(spelled)} --socket --timeout --json --version --help"
    lines += [f"    '') COMPREPLY=($(compgen -W '{top}' -- \"$word\")) ;;"]
    for one in found:
        lines += [f"    {one.name})", "        case $before in"]
        for option in one.options:
            if option.takes:
                reply = (
                    f"COMPREPLY=($(compgen -W '{' '.join(option.choices)}' -- \"$word\")); "
                    if option.choices
                    else ""
                )
                lines += [f"        {'|'.join(option.spellings)}) {reply}return ;;"]
        lines += ["        esac", "        if [[ $word == -* ]]; then"]
        lines += [f"            COMPREPLY=($(compgen -W '{spelled[one.name]}' -- \"$word\"))"]
        if one.words:
            lines += [
                "        else",
                f"            COMPREPLY=($(compgen -W '{' '.join(one.words)}' -- \"$word\"))",
            ]
        lines += ["        fi ;;"]
    return "\n".join(
        [*lines, "    esac", "}", "complete -o bashdefault -o default -F _gpulease gpulease", ""]
    )


def zsh(found: Sequence[Command]) -> str:
    """For a file ``_gpulease`` in a directory of ``$fpath``."""
    lines = [
        "#compdef gpulease",
        "# `gpulease completion zsh` writes it.",
        "_gpulease() {",
        "    local -a commands",
    ]
    lines += ["    commands=("]
    lines += [f"        {_quoted(f'{one.name}:{one.help}')}" for one in found]
    lines += [
        "    )",
        "    if (( CURRENT == 2 )); then",
        "        _describe command commands",
        "        return",
        "    fi",
    ]
    lines += ["    local command=$words[2]", "    shift words", "    (( CURRENT-- ))", "    case $command in"]
    for one in found:
        lines += [f"    {one.name})", "        _arguments -S \\"]
        lines += [f"            {_quoted(spec)} \\" for option in one.options for spec in _zsh_specs(option)]
        lines += [
            f"            {_quoted('1:word:(' + ' '.join(one.words) + ')')} ;;"
            if one.words
            else "            '*::word:_normal' ;;"
        ]
    return "\n".join([*lines, "    esac", "}", '_gpulease "$@"', ""])


def _zsh_specs(option: Option) -> Iterable[str]:
    shown = option.help
    for plain in "[]:":
        shown = shown.replace(plain, f"\\{plain}")
    values = "_files" if option.takes == "PATH" else f"({' '.join(option.choices)})"
    value = f":{option.takes}:{values}" if option.takes else ""
    for spelling in option.spellings:
        yield f"*{spelling}[{shown}]{value}"


def fish(found: Sequence[Command]) -> str:
    """For `fish`'s directory of completions."""
    names = " ".join(one.name for one in found)
    start = f"complete -c gpulease -n 'not __fish_seen_subcommand_from {names}' -f"
    lines = ["# `gpulease completion fish` writes it."]
    lines += [f"{start} -a {one.name} -d {_quoted(one.help)}" for one in found]
    for one in found:
        head = f"complete -c gpulease -n '__fish_seen_subcommand_from {one.name}'"
        lines += [f"{head} -f -a {_quoted(' '.join(one.words))}"] if one.words else []
        for option in one.options:
            spelled = " ".join(
                f"-l {s[2:]}" if s.startswith("--") else f"-s {s[1:]}" for s in option.spellings
            )
            values = f" -a {_quoted(' '.join(option.choices))}" if option.choices else ""
            takes = (" -rF" if option.takes == "PATH" else f" -x{values}") if option.takes else ""
            lines += [f"{head} {spelled}{takes} -d {_quoted(option.help)}"]
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    """One word for each of the shells; fish reads backslashes in such quotes, but it gets none."""
    return "'" + text.replace("'", "'\\''") + "'"


SCRIPTS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
