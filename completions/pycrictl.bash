# bash completion for pycrictl                             -*- shell-script -*-
# For bash 4.4 and later, with or without the package bash-completion.

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

# The program prints a candidate a line, with a description after a tab, and then a directive of
# cobra's: 4 for no files, 16 for directories only.
_pycrictl() {
    local words quote word line directive program=pycrictl IFS=$' \t\n'
    local -a answer candidates=()
    local -A about=()
    COMPREPLY=()
    _pycrictl_split "${COMP_LINE:0:COMP_POINT}"
    word=${words[-1]}
    if [[ ${words[-2]} == *[\<\>] || $word == *([0-9\&])[\<\>]* ]]; then
        compopt -o default
        return
    fi
    [[ $1 == */* ]] && program=${1/#\~\//$HOME/}
    type -P -- "$program" >/dev/null || return
    mapfile -t answer < <("$program" __complete "${words[@]:1}" 2>/dev/null)
    [[ ${#answer[@]} != 0 && ${answer[-1]} == :* ]] || return
    directive=${answer[-1]#:}
    for line in "${answer[@]:0:${#answer[@]}-1}"; do
        candidates+=("${line%%$'\t'*}")
        [[ $line == *$'\t'* ]] && about[${line%%$'\t'*}]=${line#*$'\t'}
    done
    ((directive & 16)) && compopt -o dirnames
    if ! ((directive & 20)); then
        compopt -o default
        if [[ ${#candidates[@]} != 0 && $word != -*=* ]]; then
            while IFS= read -r line; do
                [[ -d $line ]] && line+=/
                candidates+=("$line")
            done < <(compgen -f -- "$word")
        fi
    fi
    _pycrictl_reply "$word" "$2"
}

complete -F _pycrictl pycrictl
# The same for an alias or a link of crictl's name.
if [[ ${BASH_ALIASES[crictl]-} =~ (^|[ /])pycrictl([ .]|$) ||
    "$(readlink -f -- "$(type -P crictl)" 2>/dev/null)" =~ /pycrictl[^/]*$ ]]; then
    complete -F _pycrictl crictl
fi
