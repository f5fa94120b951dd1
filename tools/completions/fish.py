"""The script for fish, 3.1 and later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tools.completions import words
from tools.surface import Command

_HEAD: Final = r"""# fish completion for pycrictl.
# Generated from the command tree by "make generate".

# Describes what a command takes, in variables of the caller.
#   switches     options without a value, and what they do
#   valued       options with one: OPTION, KIND, what it does
#   positionals  the kinds of its words
#   endless      whether the last of these repeats
#   remote       whether another program's command line follows
#   nested       its sub-commands, and what they do
# A KIND is @, with a name for what the shell itself knows, or fixed values with | between them.
function __pycrictl_describe --no-scope-shadowing
    set switches
    set valued
    set positionals
    set endless ''
    set remote ''
    set nested
    switch $argv[1]
"""

_TAIL: Final = r"""    end
end

# Prints the kind of an option's value; fails for one without a value.
function __pycrictl_value --no-scope-shadowing
    set -l given (string replace -r '^--?' '' -- (string split -m 1 = -- $argv[1])[1])
    for option in $valued
        set -l fields (string split \t -- $option)
        if test (string replace -r '^--?' '' -- $fields[1]) = "$given"
            printf '%s\n' $fields[2]
            return 0
        end
    end
    for option in $switches
        if test (string replace -r '^--?([^\t]*).*' '$1' -- $option) = "$given"
            return 1
        end
    end
    # Several letters in one word: the last may take a value.
    if string match -qr '^-[^-]..*' -- $argv[1]; and test (string length -- $given) -gt 1
        __pycrictl_value -(string sub -s -1 -- $given)
        return
    end
    return 1
end

# Prints what the program knows: the word so far, what stands before each.
function __pycrictl_ask --no-scope-shadowing
    set -l program pycrictl
    string match -q '*/*' -- $called; and set program $called
    type -q -- $program; or return
    test -n "$argv[2]"; and set words $words (string replace -r '=$' '' -- $argv[2])
    for line in ($program __complete $words $argv[1] 2>/dev/null)
        printf '%s%s\n' $argv[2] $line
    end
end

# Prints what a word of a kind can be: kind, the word, what stands before it.
function __pycrictl_candidates --no-scope-shadowing
    switch $argv[1]
        case ''
        case @file @socket @directory @path
            if test $argv[1] = @path; and not string match -qr '^[/.~]' -- $argv[2]
                __pycrictl_ask $argv[2] $argv[3]
            end
            if test $argv[1] = @socket
                for endpoint in @ENDPOINTS@
                    test -e (string replace unix:// '' -- $endpoint)
                    and printf '%s\n' "$argv[3]$endpoint"
                end
            end
            set -l scheme (string match -r '^unix://' -- $argv[2])
            set -l beginning (string replace -r '^unix://' '' -- $argv[2])
            set beginning (string replace -r '^~/' $HOME/ -- $beginning)
            for file in $beginning*
                test -d $file; and set file $file/
                string match -q '~/*' -- $argv[2]
                and set file (string replace $HOME/ '~/' -- $file)
                printf '%s\n' "$argv[3]$scheme$file"
            end
        case @
            __pycrictl_ask $argv[2] $argv[3]
        case @remote
            string match -q '/*' -- $argv[2]; and __pycrictl_ask $argv[2] $argv[3]
        case '*'
            printf '%s\n' $argv[3](string split '|' -- $argv[1])
    end
end

function __pycrictl
    set -l switches
    set -l valued
    set -l positionals
    set -l endless
    set -l remote
    set -l nested
    set -l path
    set -l over ''
    set -l kind ''
    set -l has_value ''
    set -l count 1
    set -l words (commandline -opc)
    set -l called $words[1]
    set -e words[1]
    __pycrictl_describe ''
    for word in $words
        if test -n "$has_value"
            set has_value ''
        else if test -z "$over"; and test "$word" = --
            set over 1
        else if test -z "$over"; and string match -qr '^-.' -- $word
            if not string match -q '*=*' -- $word; and set kind (__pycrictl_value $word)
                set has_value 1
            end
        else if contains -- "$path$word" help h; or begin
                test $count = 1; and contains -- $word (string split -f 1 \t -- $nested)
            end
            set path $path $word
            __pycrictl_describe "$path"
            continue
        else
            set -q path[1]; or return
            set count (math $count + 1)
            set over "$over$remote"
        end
    end
    set -l word (commandline -ct)
    set word (string unescape -- $word; or string replace -r '^["\']' '' -- $word)
    if test -n "$has_value"
        __pycrictl_candidates "$kind" "$word" ''
    else if test -z "$over"; and string match -qr '^-.*=' -- $word
        if set kind (__pycrictl_value $word)
            set -l parts (string split -m 1 = -- $word)
            __pycrictl_candidates "$kind" "$parts[2]" "$parts[1]="
        end
    else if test -z "$over"; and string match -q -- '-*' $word
        printf '%s\n' $switches
        for option in $valued
            printf '%s\t%s\n' (string split -f 1,3 \t -- $option)
        end
    else
        test $count = 1; and set -q nested[1]; and printf '%s\n' $nested
        if test -n "$endless" -a $count -gt (count $positionals)
            set count (count $positionals)
        end
        __pycrictl_candidates "$positionals[$count]" "$word" ''
    end
end

complete -c pycrictl -f -a '(__pycrictl)'
"""


def script(program: Command) -> str:
    """Return the whole script."""
    lines = [line for command in program.walk() for line in _case(command, program)]
    lines.append(f"        case {' '.join(words.HELP)}")
    lines += _list("nested", words.names(program))
    tail = _TAIL.replace("@ENDPOINTS@", words.ENDPOINTS)
    return _HEAD + "".join(f"{line}\n" for line in lines) + tail


def _case(command: Command, program: Command) -> Iterator[str]:
    yield f"        case {' '.join(map(_quoted, words.spellings(command, program)))}"
    switches = [option for option in command.options if option.is_switch]
    valued = [option for option in command.options if not option.is_switch]
    yield from _list(
        "switches",
        ((name, words.description(each.help)) for each in switches for name in each.names),
    )
    yield from _list(
        "valued",
        (
            (name, words.kind(each), words.description(each.help))
            for each in valued
            for name in each.names
        ),
    )
    if command.arguments:
        kinds = " ".join(_quoted(words.kind(argument)) for argument in command.arguments)
        yield f"            set positionals {kinds}"
        if command.arguments[-1].is_repeatable:
            yield "            set endless 1"
    if command.is_remote:
        yield "            set remote 1"
    yield from _list("nested", words.names(command))


def _list(variable: str, items: Iterable[tuple[str, ...]]) -> Iterator[str]:
    lines = ["\\t".join(map(_quoted, item)) for item in items]
    if lines:
        yield f"            set {variable} \\"
        yield from (f"                {line} \\" for line in lines[:-1])
        yield f"                {lines[-1]}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
