"""The script for bash, 4.4 and later, with or without the package bash-completion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tools.completions import words
from tools.surface import Command

_HEAD: Final = r"""# bash completion for pycrictl                             -*- shell-script -*-
# Generated from the command tree by "make generate".

# Describes what a command takes.
#   switches     options without a value
#   valued       options with one, as OPTION=KIND
#   positionals  the kinds of its words
#   is_endless   whether the last of these repeats
#   is_remote    whether another program's command line follows
#   nested       its sub-commands
# A KIND is @, with a name for what the shell itself knows, or fixed values with | between them.
_pycrictl_describe() {
    switches=() valued=() positionals=() nested=() is_endless= is_remote=
    case $1 in
"""

_TAIL: Final = r"""    esac
}

# Takes a line apart into $words, without their quotes. The last word is the one that is typed;
# $quote is the quote that is open in it.
_pycrictl_split() {
    local LC_ALL=C line=$1 char word= is_word= i
    words=() quote=
    for ((i = 0; i < ${#line}; i++)); do
        char=${line:i:1}
        if [[ $quote == "'" ]]; then
            if [[ $char == "'" ]]; then quote=; else word+=$char; fi
        elif [[ $char == \\ ]]; then
            is_word=1
            ((i += 1))
            [[ $quote && ${line:i:1} != [\"\\\$\`] ]] && word+=$char
            word+=${line:i:1}
        elif [[ $quote ]]; then
            if [[ $char == \" ]]; then quote=; else word+=$char; fi
        elif [[ $char == [\'\"] ]]; then
            is_word=1 quote=$char
        elif [[ $char == [[:space:]] ]]; then
            [[ $is_word ]] && words+=("$word")
            word= is_word=
        else
            is_word=1 word+=$char
        fi
    done
    words+=("$word")
}

# Sets $kind to that of an option's value; fails for one without a value.
_pycrictl_value() {
    local given=${1%%=*} option
    given=${given#-} given=${given#-}
    for option in "${valued[@]}"; do
        kind=${option#*=} option=${option%%=*} option=${option#-}
        [[ ${option#-} == "$given" ]] && return 0
    done
    for option in "${switches[@]}"; do
        option=${option#-}
        [[ ${option#-} == "$given" ]] && return 1
    done
    # Several letters in one word: the last may take a value.
    [[ $1 == -[!-]?* && ${#given} -gt 1 ]] && _pycrictl_value "-${given: -1}"
}

# Adds what the program knows to $candidates: the word, what stands before it.
_pycrictl_ask() {
    local word description program=pycrictl
    [[ $called == */* ]] && program=${called/#\~\//$HOME/}
    type -P -- "$program" >/dev/null || return
    while IFS=$'\t' read -r word description; do
        [[ $word ]] || continue
        candidates+=("$2$word") about[$2$word]=$description
    done < <("$program" __complete "${typed[@]}" "$1" 2>/dev/null)
}

# Adds what a word of a kind can be to $candidates: kind, the word, what stands before it.
_pycrictl_candidates() {
    local file word
    case $1 in
        '') ;;
        @file) compopt -o default ;;
        @socket)
            for word in @ENDPOINTS@; do
                [[ -e ${word#unix://} && $word == "$2"* ]] && candidates+=("$3$word")
            done
            compopt -o default
            ;;
        @directory) compopt -o dirnames ;;
        @) _pycrictl_ask "$2" "$3" ;;
        @remote) [[ $2 == /* ]] && _pycrictl_ask "$2" "$3" ;;
        @path)
            if [[ $2 == [/.~]* ]]; then
                compopt -o default
                return
            fi
            _pycrictl_ask "$2" "$3"
            [[ $2 == *:* ]] && return
            while IFS= read -r file; do
                candidates+=("$3$file")
            done < <(
                shopt -u failglob
                shopt -s nullglob
                set +f
                for file in "$2"*; do
                    [[ -d $file ]] && file+=/
                    printf '%s\n' "$file"
                done
            )
            ;;
        *)
            while IFS= read -r -d '|' word; do
                candidates+=("$3$word")
            done <<<"$1|"
            ;;
    esac
}

# Turns $candidates into what bash inserts in place of the part of the word that it replaces.
_pycrictl_reply() {
    local current=$1 replaced candidate told open=$quote
    _pycrictl_split "$quote$2"
    replaced=${words[-1]}
    for candidate in "${candidates[@]}"; do
        told=${candidate:+${about[$candidate]-}}
        if [[ $candidate == "$current"* ]]; then
            candidate=${candidate:${#current}-${#replaced}}
        elif [[ ${#candidates[@]} != 1 || $current != "$replaced" ]]; then
            continue
        fi
        [[ $candidate == *[=:/] ]] && compopt -o nospace
        case $open in
            \') candidate=${candidate//\'/"'\''"} ;;
            \")
                candidate=${candidate//\\/\\\\} candidate=${candidate//\"/\\\"}
                candidate=${candidate//\$/\\\$} candidate=${candidate//\`/\\\`}
                ;;
            *) [[ $candidate ]] && printf -v candidate %q "$candidate" ;;
        esac
        # Only while bash lists what there is, and inserts nothing, can a word be described.
        [[ ${COMP_TYPE-} == 63 && $told && ${#candidates[@]} != 1 ]] && candidate+="  ($told)"
        COMPREPLY+=("$candidate")
    done
}

_pycrictl() {
    local switches valued positionals nested is_endless is_remote kind
    local words quote word path= expects_value= is_over= count=0 i called=$1
    local -a typed candidates=() line
    local -A about=()
    local IFS=$' \t\n'
    COMPREPLY=()
    _pycrictl_split "${COMP_LINE:0:COMP_POINT}"
    _pycrictl_describe ''
    line=("${words[@]}") typed=("${words[@]:1:${#words[@]}-2}")
    for ((i = 1; i < ${#line[@]} - 1; i++)); do
        word=${line[i]}
        if [[ $expects_value ]]; then
            expects_value=
        elif [[ ! $is_over && $word == -- ]]; then
            is_over=1
        elif [[ ! $is_over && $word == -?* ]]; then
            [[ $word != *=* ]] && _pycrictl_value "$word" && expects_value=1
        elif [[ $path$word == h?(elp) || ($count == 0 && " ${nested[*]} " == *" $word "*) ]]; then
            path+=${path:+ }$word
            _pycrictl_describe "$path"
        else
            [[ $path ]] || return
            count=$((count + 1)) is_over=$is_over$is_remote
        fi
    done
    word=${line[-1]}
    if [[ $expects_value ]]; then
        _pycrictl_candidates "$kind" "$word" ''
    elif [[ ${line[-2]} == *[\<\>] || $word == *([0-9\&])[\<\>]* ]]; then
        compopt -o default
    elif [[ ! $is_over && $word == -*=* ]]; then
        typed+=("${word%%=*}")
        _pycrictl_value "$word" && _pycrictl_candidates "$kind" "${word#*=}" "${word%%=*}="
    elif [[ ! $is_over && $word == -* ]]; then
        candidates=("${switches[@]}" "${valued[@]%%=*}")
    else
        [[ $count == 0 ]] && candidates=("${nested[@]}")
        [[ $is_endless && $count -ge ${#positionals[@]} ]] && count=$((${#positionals[@]} - 1))
        _pycrictl_candidates "${positionals[count]}" "$word" ''
    fi
    _pycrictl_reply "$word" "$2"
}

complete -F _pycrictl pycrictl
# The same for an alias or a link of crictl's name.
if [[ ${BASH_ALIASES[crictl]-} =~ (^|[ /])pycrictl([ .]|$) ||
    "$(readlink -f -- "$(type -P crictl)" 2>/dev/null)" =~ /pycrictl[^/]*$ ]]; then
    complete -F _pycrictl crictl
fi
"""


def script(program: Command) -> str:
    """Return the whole script."""
    lines = [line for command in program.walk() for line in _case(command, program)]
    lines += [
        f"        {' | '.join(words.HELP)})",
        f"            nested=({_names(program)})",
        "            ;;",
    ]
    tail = _TAIL.replace("@ENDPOINTS@", words.ENDPOINTS)
    return _HEAD + "".join(f"{line}\n" for line in lines) + tail


def _case(command: Command, program: Command) -> Iterator[str]:
    paths = words.spellings(command, program)
    patterns = [f"'{path}'" if " " in path or not path else path for path in paths]
    yield f"        {' | '.join(patterns)})"
    switches = [name for option in command.options if option.is_switch for name in option.names]
    yield f"            switches=({' '.join(switches)})"
    valued = [
        f"{name}={words.kind(option)}"
        for option in command.options
        if not option.is_switch
        for name in option.names
    ]
    if valued:
        yield "            valued=("
        yield from (f"                {_quoted(item)}" for item in valued)
        yield "            )"
    if command.arguments:
        kinds = " ".join(_quoted(words.kind(argument)) for argument in command.arguments)
        yield f"            positionals=({kinds})"
        if command.arguments[-1].is_repeatable:
            yield "            is_endless=1"
    if command.is_remote:
        yield "            is_remote=1"
    if command.subcommands:
        yield f"            nested=({_names(command)})"
    yield "            ;;"


def _names(command: Command) -> str:
    return " ".join(name for name, _ in words.names(command))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
