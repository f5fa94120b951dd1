# bash completion for pycrictl                             -*- shell-script -*-
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
        '')
            switches=(-D --debug -v --version --enable-tracing -h --help)
            valued=(
                '-c=@file'
                '--config=@file'
                '--host-root=@directory'
                '-i=@socket'
                '--image-endpoint=@socket'
                '--max-retries='
                '-r=@socket'
                '--runtime-endpoint=@socket'
                '-t='
                '--timeout='
                '--profile-cpu=@file'
                '--profile-mem=@file'
                '--tracing-endpoint='
                '--tracing-sampling-rate-per-million='
            )
            nested=(ps inspect logs stats events event create run start stop rm update checkpoint exec attach port-forward debug cp pods inspectp statsp metricsp metricdescs why runp stopp rmp images image img inspecti imagefsinfo pull rmi image-pull-progress version doctor top info runtime-config config update-runtime-config proxy pull-limiter agent completion)
            ;;
        ps)
            switches=(-a --all -l --latest --no-headers --no-trunc -q --quiet -r --resolve-image-path -v --verbose -w --watch -h --help)
            valued=(
                '--id=@'
                '--image=@'
                '--label='
                '-n='
                '--last='
                '--name='
                '--namespace='
                '-o=json|yaml|table|wide|jsonpath=|custom-columns='
                '--output=json|yaml|table|wide|jsonpath=|custom-columns='
                '-p=@'
                '--pod=@'
                '--sort-by=container|image|created|state|name|attempt|pod|namespace'
                '-s=created|running|exited|unknown'
                '--state=created|running|exited|unknown'
            )
            ;;
        inspect)
            switches=(-a --all -l --latest -q --quiet -h --help)
            valued=(
                '--image=@'
                '--label='
                '-n='
                '--last='
                '--name='
                '--namespace='
                '-o=json|yaml|go-template|table|jsonpath='
                '--output=json|yaml|go-template|table|jsonpath='
                '-p=@'
                '--pod=@'
                '-s=created|running|exited|unknown'
                '--state=created|running|exited|unknown'
                '--template='
            )
            positionals=('@')
            is_endless=1
            ;;
        logs)
            switches=(-a --all -f --follow -p --previous -r --reopen -t --timestamps -h --help)
            valued=(
                '-l='
                '--label='
                '--limit-bytes='
                '--since='
                '-s=stdout|stderr'
                '--stream=stdout|stderr'
                '--tail='
            )
            positionals=('@')
            ;;
        stats)
            switches=(-a --all --no-headers -w --watch -h --help)
            valued=(
                '--id=@'
                '--label='
                '-o=json|yaml|table|jsonpath=|custom-columns='
                '--output=json|yaml|table|jsonpath=|custom-columns='
                '-p=@'
                '--pod=@'
                '-s='
                '--seconds='
                '--sort-by=container|name|mem|disk|inodes|swap|cpu'
            )
            positionals=('@')
            ;;
        events | event)
            switches=(-h --help)
            valued=(
                '-o=json|yaml|go-template|jsonpath='
                '--output=json|yaml|go-template|jsonpath='
                '--template='
            )
            ;;
        create)
            switches=(--no-pull --with-pull -h --help)
            valued=(
                '--auth='
                '-T='
                '--cancel-timeout='
                '--creds='
                '-pt='
                '--pull-timeout='
                '-u='
                '--username='
            )
            positionals=('@' '@file' '@file')
            nested=(jsonschema js)
            ;;
        'create jsonschema' | 'create js')
            switches=(-p --pod -c --container -h --help)
            ;;
        run)
            switches=(--no-pull --with-pull -h --help)
            valued=(
                '--auth='
                '-T='
                '--cancel-timeout='
                '--creds='
                '-pt='
                '--pull-timeout='
                '-r='
                '--runtime='
                '-u='
                '--username='
            )
            positionals=('@file' '@file')
            nested=(jsonschema js)
            ;;
        'run jsonschema' | 'run js')
            switches=(-p --pod -c --container -h --help)
            ;;
        start)
            switches=(-h --help)
            positionals=('@')
            is_endless=1
            ;;
        stop)
            switches=(-a --all -h --help)
            valued=(
                '-t='
                '--timeout='
            )
            positionals=('@')
            is_endless=1
            ;;
        rm)
            switches=(-a --all -f --force -k --keep-logs -h --help)
            positionals=('@')
            is_endless=1
            ;;
        update)
            switches=(-h --help)
            valued=(
                '--cpu-count='
                '--cpu-maximum='
                '--cpu-period='
                '--cpu-quota='
                '--cpu-share='
                '--cpuset-cpus='
                '--cpuset-mems='
                '--memory='
                '--oom-score-adj='
            )
            positionals=('@')
            is_endless=1
            ;;
        checkpoint)
            switches=(-h --help)
            valued=(
                '-e=@file'
                '--export=@file'
            )
            positionals=('@')
            is_endless=1
            ;;
        exec)
            switches=(-e --ignore-errors -i --interactive -l --latest -x --parallel -q --quiet -s --sync -t --tty -h --help)
            valued=(
                '--image=@'
                '--label='
                '-n='
                '--last='
                '--name='
                '-p=@'
                '--pod=@'
                '--state=created|running|exited|unknown'
                '--timeout='
                '--tls-ca=@file'
                '--tls-cert=@file'
                '--tls-key=@file'
                '--tls-sni='
                '--tls-server-name='
                '-r=auto|spdy|websocket'
                '--transport=auto|spdy|websocket'
            )
            positionals=('@' '@remote')
            is_endless=1
            is_remote=1
            ;;
        attach)
            switches=(-i --stdin -t --tty -h --help)
            valued=(
                '--tls-ca=@file'
                '--tls-cert=@file'
                '--tls-key=@file'
                '--tls-sni='
                '--tls-server-name='
                '-r=auto|spdy|websocket'
                '--transport=auto|spdy|websocket'
            )
            positionals=('@')
            ;;
        port-forward)
            switches=(-h --help)
            valued=(
                '--address='
                '--tls-ca=@file'
                '--tls-cert=@file'
                '--tls-key=@file'
                '--tls-sni='
                '--tls-server-name='
                '-r=auto|spdy|websocket'
                '--transport=auto|spdy|websocket'
            )
            positionals=('@' '')
            is_endless=1
            ;;
        debug)
            switches=(-h --help)
            valued=(
                '--busybox=@file'
                '--tools=@'
                '--progress=auto|bar|plain|json|none'
            )
            positionals=('@' '')
            is_endless=1
            is_remote=1
            ;;
        cp)
            switches=(-a --archive -L --follow-link --in-place --no-clobber -q --quiet --sweep -h --help)
            valued=(
                '--max-entries='
                '--max-size='
                '--method=auto|rpc|node|exec'
                '--progress=auto|bar|plain|json|none'
                '--tls-ca=@file'
                '--tls-cert=@file'
                '--tls-key=@file'
                '--tls-sni='
                '--tls-server-name='
                '-r=auto|spdy|websocket'
                '--transport=auto|spdy|websocket'
            )
            positionals=('@path' '@path')
            ;;
        pods)
            switches=(-l --latest --no-headers --no-trunc -q --quiet -v --verbose -w --watch -h --help)
            valued=(
                '--id=@'
                '--label='
                '-n='
                '--last='
                '--name='
                '--namespace='
                '-o=json|yaml|table|wide|jsonpath=|custom-columns='
                '--output=json|yaml|table|wide|jsonpath=|custom-columns='
                '--sort-by=created|state|name|namespace|attempt|runtime|uid'
                '-s=ready|notready'
                '--state=ready|notready'
            )
            ;;
        inspectp)
            switches=(-l --latest -q --quiet -h --help)
            valued=(
                '--label='
                '-n='
                '--last='
                '--name='
                '--namespace='
                '-o=json|yaml|go-template|table|jsonpath='
                '--output=json|yaml|go-template|table|jsonpath='
                '-s=ready|notready'
                '--state=ready|notready'
                '--template='
            )
            positionals=('@')
            is_endless=1
            ;;
        statsp)
            switches=(--no-headers -w --watch -h --help)
            valued=(
                '--id=@'
                '--label='
                '-o=json|yaml|table|jsonpath=|custom-columns='
                '--output=json|yaml|table|jsonpath=|custom-columns='
                '-s='
                '--seconds='
                '--sort-by=pod|mem|cpu'
            )
            positionals=('@')
            ;;
        metricsp)
            switches=(-w --watch -h --help)
            valued=(
                '-o=json|yaml|jsonpath='
                '--output=json|yaml|jsonpath='
            )
            ;;
        metricdescs)
            switches=(-h --help)
            valued=(
                '-o=json|yaml|jsonpath='
                '--output=json|yaml|jsonpath='
            )
            ;;
        why)
            switches=(--no-kube -w --watch -h --help)
            valued=(
                '-o=json|yaml|go-template|table|jsonpath='
                '--output=json|yaml|go-template|table|jsonpath='
                '--template='
                '--admin-socket=@socket'
            )
            positionals=('@')
            ;;
        runp)
            switches=(-h --help)
            valued=(
                '-T='
                '--cancel-timeout='
                '-r='
                '--runtime='
            )
            positionals=('@file')
            nested=(jsonschema js)
            ;;
        'runp jsonschema' | 'runp js')
            switches=(-h --help)
            ;;
        stopp)
            switches=(-h --help)
            positionals=('@')
            is_endless=1
            ;;
        rmp)
            switches=(-a --all -f --force -h --help)
            positionals=('@')
            is_endless=1
            ;;
        images | image | img)
            switches=(--digests --no-headers --no-trunc --pinned -q --quiet -v --verbose -w --watch -h --help)
            valued=(
                '-f=dangling=true|dangling=false|reference=|before=|since='
                '--filter=dangling=true|dangling=false|reference=|before=|since='
                '-o=json|yaml|table|wide|jsonpath=|custom-columns='
                '--output=json|yaml|table|wide|jsonpath=|custom-columns='
                '--sort-by=image|digest|size|pinned|user'
            )
            positionals=('@')
            ;;
        inspecti)
            switches=(-q --quiet -h --help)
            valued=(
                '-f=dangling=true|dangling=false|reference=|before=|since='
                '--filter=dangling=true|dangling=false|reference=|before=|since='
                '--name='
                '-o=json|yaml|go-template|table|jsonpath='
                '--output=json|yaml|go-template|table|jsonpath='
                '--template='
            )
            positionals=('@')
            is_endless=1
            ;;
        imagefsinfo)
            switches=(--no-headers -h --help)
            valued=(
                '-o=json|yaml|go-template|table|wide|jsonpath='
                '--output=json|yaml|go-template|table|wide|jsonpath='
                '--template='
            )
            ;;
        pull)
            switches=(--no-manifest --keep-going -h --help)
            valued=(
                '-a='
                '--annotation='
                '--auth='
                '--creds='
                '--pod-config=@file'
                '-pt='
                '--pull-timeout='
                '-u='
                '--username='
                '--progress=auto|bar|plain|json|none'
                '--max-parallel-image-pulls='
                '--when-full=wait|retry'
                '--retry-interval='
                '--retries='
                '--from=@file'
                '--parallel='
            )
            positionals=('@')
            is_endless=1
            nested=(jsonschema js)
            ;;
        'pull jsonschema' | 'pull js')
            switches=(-h --help)
            ;;
        rmi)
            switches=(-a --all -q --prune --dry-run -h --help)
            positionals=('@')
            is_endless=1
            ;;
        image-pull-progress)
            switches=(--follow --aggregate --no-manifest --no-kube -h --help)
            valued=(
                '-c=@'
                '--container=@'
                '--image=@'
                '--progress=auto|bar|plain|json|none'
                '--source=auto|cri|containerd|crio'
                '--containerd-namespace='
                '--admin-socket=@socket'
                '--interval='
            )
            positionals=('@')
            ;;
        version)
            switches=(-h --help)
            valued=(
                '-o=json|yaml|table|jsonpath='
                '--output=json|yaml|table|jsonpath='
            )
            ;;
        doctor)
            switches=(--no-registry -h --help)
            valued=(
                '--registry='
                '-o=json|yaml|go-template|table|jsonpath='
                '--output=json|yaml|go-template|table|jsonpath='
                '--template='
                '--admin-socket=@socket'
            )
            ;;
        top)
            switches=(--once --no-kube -h --help)
            valued=(
                '-o=table|json'
                '--output=table|json'
                '--interval='
                '--admin-socket=@socket'
            )
            ;;
        info)
            switches=(-q --quiet -h --help)
            valued=(
                '-o=json|yaml|go-template|jsonpath='
                '--output=json|yaml|go-template|jsonpath='
                '--template='
            )
            ;;
        runtime-config)
            switches=(-h --help)
            valued=(
                '-o=json|yaml|table|jsonpath='
                '--output=json|yaml|table|jsonpath='
            )
            ;;
        config)
            switches=(--list --no-headers -h --help)
            valued=(
                '--get=runtime-endpoint|image-endpoint|timeout|debug|pull-image-on-create|disable-pull-on-run|max-retries'
                '-o=json|yaml|table|jsonpath='
                '--output=json|yaml|table|jsonpath='
                '--set=runtime-endpoint=|image-endpoint=|timeout=|debug=|pull-image-on-create=|disable-pull-on-run=|max-retries='
            )
            positionals=('runtime-endpoint|image-endpoint|timeout|debug|pull-image-on-create|disable-pull-on-run|max-retries' '')
            ;;
        update-runtime-config)
            switches=(-h --help)
            valued=(
                '-p='
                '--pod-cidr='
            )
            ;;
        proxy)
            switches=(--serialize-image-pulls --no-manifest --take-over --reload -h --help)
            valued=(
                '--upstream=@socket'
                '--listen=@socket'
                '--max-parallel-image-pulls='
                '--when-full=wait|retry'
                '--retry-interval='
                '--retries='
                '--kubelet-config=@file'
                '--config=@file'
                '--drain-timeout='
                '--admin-socket=@socket'
                '--stream-address='
                '--container-copy-size-limit='
                '--container-copy-entry-limit='
                '--container-copies-per-pod='
                '--spool-dir=@directory'
                '--state-dir=@directory'
                '--log-format=text|json'
                '--log-level=debug|info|warning|error'
                '--metrics-listen='
                '--tracing-endpoint='
                '--events=@file'
            )
            ;;
        pull-limiter)
            switches=(-w --watch --failed --no-headers -h --help)
            valued=(
                '--admin-socket=@socket'
                '-o=json|yaml|table|jsonpath='
                '--output=json|yaml|table|jsonpath='
                '--interval='
                '--since='
                '--image='
                '--sort-by=ended|image|pod|waited|pulled|got|reused|rate|attempts|outcome'
            )
            positionals=('status|set|cancel|history' '')
            ;;
        agent)
            switches=(--events -h --help)
            valued=(
                '--listen='
                '--node-name='
                '--kubeconfig=@file'
                '--tls-cert=@file'
                '--tls-key=@file'
                '--client-ca=@file'
                '--peer-ca=@file'
                '--peer-token=@file'
                '--peer-namespace='
                '--namespaces='
                '--admin-socket=@socket'
                '--metrics-listen='
                '--spool-dir=@directory'
                '--spool-size='
                '--container-copy-size-limit='
                '--container-copies-per-pod='
                '--kubelet-config=@file'
                '--log-format=text|json'
                '--log-level=debug|info|warning|error'
            )
            ;;
        completion)
            switches=(-h --help)
            positionals=('bash|zsh|fish')
            ;;
        help | h)
            nested=(ps inspect logs stats events event create run start stop rm update checkpoint exec attach port-forward debug cp pods inspectp statsp metricsp metricdescs why runp stopp rmp images image img inspecti imagefsinfo pull rmi image-pull-progress version doctor top info runtime-config config update-runtime-config proxy pull-limiter agent completion)
            ;;
    esac
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
            for word in unix:///run/containerd/containerd.sock unix:///run/crio/crio.sock unix:///var/run/cri-dockerd.sock unix:///run/k3s/containerd/containerd.sock unix:///run/k0s/containerd.sock unix:///var/snap/microk8s/common/run/containerd.sock; do
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
