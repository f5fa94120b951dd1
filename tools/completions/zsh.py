"""The script for zsh 5, in terms of its own completion system."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tools.completions import words
from tools.surface import Argument, Command, Completes, Option

_HEAD: Final = r"""#compdef pycrictl
# zsh completion for pycrictl.
# Generated from the command tree by "make generate".

# Adds what the program knows.
_pycrictl_ask() {
    [[ $PREFIX == -* ]] && return 1
    local program=pycrictl line value description
    local -a whole open typed=("${pycrictl_typed[@]}")
    [[ $service == */* ]] && program=${(Q)service}
    [[ $IPREFIX == --*= ]] && typed+=("${IPREFIX%=}")
    for line in ${(f)"$($program __complete "${typed[@]}" "${(Q)PREFIX}" 2>/dev/null)"}; do
        value=${line%%$'\t'*} description=${line#*$'\t'}
        if [[ $value != ${(Q)PREFIX}* ]]; then
            compadd -U -- $value
        elif [[ $value == *[:/] ]]; then
            open+=("${${value//\\/\\\\}//:/\\:}${description:+:$description}")
        else
            whole+=("${${value//\\/\\\\}//:/\\:}${description:+:$description}")
        fi
    done
    local ret=1
    (( $#whole )) && _describe -t pycrictl-known known whole && ret=0
    (( $#open )) && _describe -t pycrictl-known known open -S '' && ret=0
    return ret
}

_pycrictl_choices() {
    local ret=1
    compadd -- ${@:#*=} && ret=0
    compadd -S '' -- ${(M)@:#*=} && ret=0
    return ret
}

_pycrictl_socket() {
    local ret=1 endpoint
    for endpoint in @ENDPOINTS@; do
        [[ -e ${endpoint#unix://} ]] && compadd -- $endpoint && ret=0
    done
    compset -P 'unix://'
    _files && ret=0
    return ret
}

# A local path, or one in a container.
_pycrictl_path() {
    local word=${(Q)PREFIX} ret=1
    [[ $word != [/.~]* ]] && _pycrictl_ask && ret=0
    [[ $word != *:* || $word == [/.]* ]] && _files && ret=0
    return ret
}

# A word of the command line that runs in a container.
_pycrictl_remote() { [[ ${(Q)PREFIX} == /* ]] && _pycrictl_ask }

_pycrictl_commands() {
    local -a commands=(
"""

_MIDDLE: Final = r"""    )
    _describe -t commands command commands
}

_pycrictl() {
    local curcontext=$curcontext context state state_descr line i ret=1
    local -A opt_args
    # Two words are made of "-o=VALUE", a form that _arguments has for long options only.
    for (( i = 2; i <= CURRENT; i++ )); do
        [[ $words[i] == -- ]] && break
        [[ $words[i] == -[^-=]*=* ]] || continue
        (( i == CURRENT )) && compset -P 1 '*='
        words[i]=("${words[i]%%=*}" "${words[i]#*=}")
        (( CURRENT += 1, i += 1 ))
    done
    local -a pycrictl_typed=("${(@Q)words[2,CURRENT-1]}")
    _arguments -C -s -S -A '-*' \
"""

_DISPATCH: Final = r"""        '1: :_pycrictl_commands' \
        '*:: :->command' && ret=0
    [[ $state == command ]] || return ret
    curcontext=${curcontext%:*:*}:pycrictl-$words[1]:
    case $words[1] in
        (help | h)
            _arguments '1: :_pycrictl_commands' && ret=0
            ;;
"""

_TAIL: Final = r"""    esac
    return ret
}

# Read by the completion system as a function, or by "source".
if [[ $funcstack[1] == _pycrictl ]]; then
    _pycrictl "$@"
else
    compdef _pycrictl pycrictl
fi
"""


def script(program: Command) -> str:
    """Return the whole script."""
    lines = [f"        {_described(*pair)}" for pair in words.names(program)]
    lines.append(_MIDDLE.rstrip("\n"))
    lines += [f"        {spec} \\" for spec in _specs(program)]
    lines.append(_DISPATCH.rstrip("\n"))
    for command in program.subcommands:
        lines.append(f"        ({' | '.join((command.name, *command.aliases))})")
        lines += [f"            {line}" for line in _case(command)]
        lines.append("            ;;")
    text = _HEAD + "".join(f"{line}\n" for line in lines) + _TAIL
    return text.replace("@ENDPOINTS@", words.ENDPOINTS)


def _case(command: Command) -> Iterator[str]:
    for inner in command.subcommands:
        names = "|".join((inner.name, *inner.aliases))  # a space would be part of the pattern
        yield f"if (( CURRENT > 2 )) && [[ $words[2] == ({names}) ]]; then"
        yield "    shift words"
        yield "    (( CURRENT -= 1 ))"
        yield from (f"    {line}" for line in _arguments(inner))
        yield "    return ret"
        yield "fi"
    yield from _arguments(command)


def _arguments(command: Command) -> Iterator[str]:
    options = "-s -S -A '-*'" if command.is_remote else "-s -S"
    specs = [*_specs(command), *_positionals(command)]
    yield " \\\n                ".join([f"_arguments {options}", *specs]) + " && ret=0"


def _specs(command: Command) -> Iterator[str]:
    for option in command.options:
        described = f"[{_escaped(words.description(option.help))}]"
        value = "" if option.is_switch else f":{_escaped(option.metavar)}:{_action(option)}"
        names = [
            f"{name}=" if name.startswith("--") and not option.is_switch else name
            for name in option.names
        ]
        others = "*" if option.is_repeatable else f"({' '.join(option.names)})"
        if len(names) == 1:
            first = "*" if option.is_repeatable else ""
            yield _quoted(f"{first}{names[0]}{described}{value}")
        else:
            yield f"{_quoted(others)}{{{','.join(names)}}}{_quoted(described + value)}"


def _positionals(command: Command) -> Iterator[str]:
    for number, argument in enumerate(command.arguments, 1):
        action = _action(argument)
        place = "*" if argument.is_repeatable else str(number)
        if number == 1 and command.subcommands:
            nested = " ".join(_described(*pair) for pair in words.names(command))
            either = (
                "{ local -a nested=(" + nested + "); "
                f"_describe -t commands command nested; {action.strip()} }}"
            )
            yield _quoted(f"1:{_escaped(argument.metavar)}:{either}")
            if not argument.is_repeatable:
                continue
        if argument.completes is Completes.REMOTE:
            place = "*::"
        yield _quoted(f"{place}:{_escaped(argument.metavar)}:{action}")


def _action(word: Option | Argument) -> str:
    if word.choices:
        return " _pycrictl_choices " + " ".join(
            choice.replace("[", "\\[").replace("]", "\\]") for choice in word.choices
        )
    return {
        Completes.NOTHING: " ",
        Completes.FILE: "_files",
        Completes.DIRECTORY: "_files -/",
        Completes.SOCKET: "_pycrictl_socket",
        Completes.PATH: "_pycrictl_path",
        Completes.ASKED: " _pycrictl_ask",
        Completes.REMOTE: "_pycrictl_remote",
    }[word.completes]


def _described(name: str, summary: str) -> str:
    return _quoted(f"{name}:{summary}")


def _escaped(text: str) -> str:
    for character in "\\[]:":
        text = text.replace(character, f"\\{character}")
    return text


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
