# What a host runs on first contact. The client sets `action` and the variables that it needs, and
# reads the words after `pycrictl-answer`.
#
# `sh` runs this, but a login shell, even fish or csh, reads it first, as one line: no single
# quotes, backslashes or exclamation marks; comments only here; a semicolon after every command.

umask 077;
cache="${XDG_CACHE_HOME:-$HOME/.cache}/pycrictl";
own() { [ -O "$1" ] && [ -d "$1" ] && case $(ls -ld "$1") in drwx------*) : ;; *) false ;; esac; };
sum() {
    s=$(cd "$1" && find . -type f -o -type l | LC_ALL=C sort | xargs sha256sum | sha256sum) &&
    [ "${s%% *}" = "${name##*-}" ];
};
fail() { { rm -rf "$new"; rmdir "$cache" "${cache%/*}"; } 2>/dev/null; exit 1; };

case $action in
find)
    machine=$(uname -m); name=;
    case $(ldd --version 2>&1) in *musl*) machine=$machine-musl ;; esac;
    for i in $programs; do case $i in "$version-$machine-"*) name=$i ;; esac; done;
    program=$(command -v pycrictl) && case $("$program" --version </dev/null 2>/dev/null) in
        "pycrictl version $version") : ;;
        *) program= ;;
    esac;
    if [ -z "$program" ] && [ -n "$name" ] && own "$cache/$name" && sum "$cache/$name"; then
        program=$cache/$name/pycrictl;
    fi;
    echo; echo pycrictl-answer "$machine" "$program" ;;

send)
    if [ -z "$keeps" ]; then
        XDG_CACHE_HOME=$(mktemp -d "${TMPDIR:-/tmp}/pycrictl-XXXXXX") || exit 1;
        export XDG_CACHE_HOME; cache=$XDG_CACHE_HOME/pycrictl;
    fi;
    mkdir -p "$cache" || exit 1;
    chmod 700 "$cache";
    own "$cache" || { echo "$cache is a link or another user owns it" >&2; exit 1; };
    new=$(mktemp -d "$cache/.host-XXXXXX") || exit 1;
    trap fail HUP INT TERM PIPE;
    e=$(tar -xzf - -C "$new" 2>&1) || { echo "${e%%tar: Exit*}" >&2; fail; };
    sum "$new" || { echo "it arrived damaged" >&2; fail; };
    "$new/pycrictl" --version </dev/null >/dev/null || fail;
    rm -rf "$cache/$name";
    mv "$new" "$cache/$name" || fail;
    for o in "$cache"/[0-9]*-*-* "$cache"/.host-*; do
        [ "$o" = "$cache/$name" ] || find "$o" -prune -type d -mtime +0 -exec rm -rf {} + ;
    done 2>/dev/null;
    echo; echo pycrictl-answer "$cache/$name" ;;

put)
    base=$(mktemp -d "${TMPDIR:-/tmp}/pycrictl-XXXXXX") || exit 1;
    cat >"$base/sent" && echo && echo pycrictl-answer "$base" ;;
esac
