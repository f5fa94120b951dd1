# fish completion for pycrictl.
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
        case ''
            set switches \
                '-D'\t'Log calls, and show tracebacks of errors' \
                '--debug'\t'Log calls, and show tracebacks of errors' \
                '-v'\t'Print the program\'s version and exit' \
                '--version'\t'Print the program\'s version and exit' \
                '--enable-tracing'\t'Send traces to an OpenTelemetry collector' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-c'\t'@file'\t'Configuration file (default: /etc/crictl.yaml)' \
                '--config'\t'@file'\t'Configuration file (default: /etc/crictl.yaml)' \
                '--host-root'\t'@directory'\t'Where the node\'s root is mounted (default: /, or /host in a node\'s debug pod)' \
                '-i'\t'@socket'\t'Socket of the image service (default: the runtime\'s)' \
                '--image-endpoint'\t'@socket'\t'Socket of the image service (default: the runtime\'s)' \
                '--max-retries'\t''\t'Retries to connect; negative: no limit (default: 3)' \
                '-r'\t'@socket'\t'Socket of the runtime (default: the first that answers)' \
                '--runtime-endpoint'\t'@socket'\t'Socket of the runtime (default: the first that answers)' \
                '-t'\t''\t'Time limit of each call, such as 500ms (default: 2s)' \
                '--timeout'\t''\t'Time limit of each call, such as 500ms (default: 2s)' \
                '--profile-cpu'\t'@file'\t'Write a CPU profile (pstats)' \
                '--profile-mem'\t'@file'\t'Write a memory snapshot (tracemalloc)' \
                '--tracing-endpoint'\t''\t'The collector\'s address (OTLP over gRPC)' \
                '--tracing-sampling-rate-per-million'\t''\t'How many of a million runs to trace; negative: all'
            set nested \
                'ps'\t'List containers, running ones by default' \
                'inspect'\t'Show the details of containers' \
                'logs'\t'Show the logs of containers' \
                'stats'\t'Show the resource usage of containers' \
                'events'\t'Show container events as they happen' \
                'event'\t'Show container events as they happen' \
                'create'\t'Create a container in a pod sandbox' \
                'run'\t'Run a container in a new pod sandbox' \
                'start'\t'Start created containers' \
                'stop'\t'Stop running containers' \
                'rm'\t'Remove containers' \
                'update'\t'Change the resource limits of containers' \
                'checkpoint'\t'Checkpoint running containers' \
                'exec'\t'Run a command in containers' \
                'attach'\t'Attach to a running container' \
                'port-forward'\t'Forward local ports to a pod sandbox' \
                'debug'\t'Run a shell beside a container that has none' \
                'cp'\t'Copy files to or from a running container' \
                'pods'\t'List pod sandboxes' \
                'inspectp'\t'Show the details of pod sandboxes' \
                'statsp'\t'Show the resource usage of pods' \
                'metricsp'\t'Show the metrics of pods' \
                'metricdescs'\t'List the pod metrics that the runtime provides' \
                'why'\t'Show why pods are not running' \
                'runp'\t'Start a new pod sandbox' \
                'stopp'\t'Stop running pod sandboxes' \
                'rmp'\t'Remove pod sandboxes and their containers' \
                'images'\t'List the images on the node' \
                'image'\t'List the images on the node' \
                'img'\t'List the images on the node' \
                'inspecti'\t'Show the details of images' \
                'imagefsinfo'\t'Show the disk usage of images' \
                'pull'\t'Pull images from a registry' \
                'rmi'\t'Remove images' \
                'image-pull-progress'\t'Show the progress of image pulls, whoever started them' \
                'version'\t'Show the runtime\'s name and version' \
                'doctor'\t'Examine the node: runtime, disks, clock, settings, proxy, leftovers, registries' \
                'top'\t'Show the node live on one screen: problems first, then pulls, then the rest' \
                'info'\t'Show the status and configuration of the runtime' \
                'runtime-config'\t'Show the settings that kubelet takes from the runtime' \
                'config'\t'Show or change the configuration file' \
                'update-runtime-config'\t'Update the runtime\'s configuration' \
                'proxy'\t'Serve the CRI in front of a runtime: pull progress, a pull limit, copies' \
                'pull-limiter'\t'Show or set a running proxy\'s limit on image pulls; show its last pulls' \
                'agent'\t'Serve the node\'s image pulls to the cluster, as an API of the API server' \
                'completion'\t'Print a shell completion script'
        case 'ps'
            set switches \
                '-a'\t'Include every state, not only running' \
                '--all'\t'Include every state, not only running' \
                '-l'\t'Only the newest, in any state' \
                '--latest'\t'Only the newest, in any state' \
                '--no-headers'\t'Omit the header line' \
                '--no-trunc'\t'Show full IDs and digests' \
                '-q'\t'Print IDs only' \
                '--quiet'\t'Print IDs only' \
                '-r'\t'Show image tags instead of IDs' \
                '--resolve-image-path'\t'Show image tags instead of IDs' \
                '-v'\t'Print the details of each' \
                '--verbose'\t'Print the details of each' \
                '-w'\t'Refresh on every change, until Ctrl-C' \
                '--watch'\t'Refresh on every change, until Ctrl-C' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--id'\t'@'\t'Only the container with this ID or name' \
                '--image'\t'@'\t'Only those created from this image' \
                '--label'\t''\t'Only those with this label; repeatable' \
                '-n'\t''\t'Only the N newest, in any state; 0: all' \
                '--last'\t''\t'Only the N newest, in any state; 0: all' \
                '--name'\t''\t'Only those with a matching name' \
                '--namespace'\t''\t'Only those in a matching pod namespace' \
                '-o'\t'json|yaml|table|wide|jsonpath=|custom-columns='\t'json, yaml, table, wide, jsonpath=TEMPLATE or custom-columns=NAME:PATH[,...]' \
                '--output'\t'json|yaml|table|wide|jsonpath=|custom-columns='\t'json, yaml, table, wide, jsonpath=TEMPLATE or custom-columns=NAME:PATH[,...]' \
                '-p'\t'@'\t'Only those of this pod sandbox' \
                '--pod'\t'@'\t'Only those of this pod sandbox' \
                '--sort-by'\t'container|image|created|state|name|attempt|pod|namespace'\t'Sort by a column, such as created, or a field, .createdAt; with -, descending' \
                '-s'\t'created|running|exited|unknown'\t'Only those in this state' \
                '--state'\t'created|running|exited|unknown'\t'Only those in this state'
        case 'inspect'
            set switches \
                '-a'\t'Include every state, not only running' \
                '--all'\t'Include every state, not only running' \
                '-l'\t'Only the newest, in any state' \
                '--latest'\t'Only the newest, in any state' \
                '-q'\t'Omit runtime-specific information' \
                '--quiet'\t'Omit runtime-specific information' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--image'\t'@'\t'Only those created from this image' \
                '--label'\t''\t'Only those with this label; repeatable' \
                '-n'\t''\t'Only the N newest, in any state; 0: all' \
                '--last'\t''\t'Only the N newest, in any state; 0: all' \
                '--name'\t''\t'Only those with a matching name' \
                '--namespace'\t''\t'Only those in a matching pod namespace' \
                '-o'\t'json|yaml|go-template|table|jsonpath='\t'Output format' \
                '--output'\t'json|yaml|go-template|table|jsonpath='\t'Output format' \
                '-p'\t'@'\t'Only those of this pod sandbox' \
                '--pod'\t'@'\t'Only those of this pod sandbox' \
                '-s'\t'created|running|exited|unknown'\t'Only those in this state' \
                '--state'\t'created|running|exited|unknown'\t'Only those in this state' \
                '--template'\t''\t'For --output go-template'
            set positionals '@'
            set endless 1
        case 'logs'
            set switches \
                '-a'\t'All containers: of the pod that is named, else of the node' \
                '--all'\t'All containers: of the pod that is named, else of the node' \
                '-f'\t'Keep following until the container or the pod ends' \
                '--follow'\t'Keep following until the container or the pod ends' \
                '-p'\t'Show the log of the previous attempt' \
                '--previous'\t'Show the log of the previous attempt' \
                '-r'\t'First ask the runtime to reopen the log file' \
                '--reopen'\t'First ask the runtime to reopen the log file' \
                '-t'\t'Start each line with its time' \
                '--timestamps'\t'Start each line with its time' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-l'\t''\t'All containers of the pods with this label; repeatable' \
                '--label'\t''\t'All containers of the pods with this label; repeatable' \
                '--limit-bytes'\t''\t'Stop after this many bytes; negative: no limit' \
                '--since'\t''\t'Only lines since a time: 10m, 2024-01-31, 2024-01-31T15:04:05Z or seconds since 1970' \
                '-s'\t'stdout|stderr'\t'Only this output' \
                '--stream'\t'stdout|stderr'\t'Only this output' \
                '--tail'\t''\t'Only the last N lines; negative: all'
            set positionals '@'
        case 'stats'
            set switches \
                '-a'\t'Include containers that are not running' \
                '--all'\t'Include containers that are not running' \
                '--no-headers'\t'Omit the header line' \
                '-w'\t'Refresh until Ctrl-C' \
                '--watch'\t'Refresh until Ctrl-C' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--id'\t'@'\t'Only this container' \
                '--label'\t''\t'Only those with this label; repeatable' \
                '-o'\t'json|yaml|table|jsonpath=|custom-columns='\t'Output format' \
                '--output'\t'json|yaml|table|jsonpath=|custom-columns='\t'Output format' \
                '-p'\t'@'\t'Only those of this pod sandbox' \
                '--pod'\t'@'\t'Only those of this pod sandbox' \
                '-s'\t''\t'Seconds between the two measurements' \
                '--seconds'\t''\t'Seconds between the two measurements' \
                '--sort-by'\t'container|name|mem|disk|inodes|swap|cpu'\t'Sort by a column, such as name, or a field, .attributes.metadata.name; with -, descending'
            set positionals '@'
        case 'events' 'event'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-o'\t'json|yaml|go-template|jsonpath='\t'Output format' \
                '--output'\t'json|yaml|go-template|jsonpath='\t'Output format' \
                '--template'\t''\t'For --output go-template'
        case 'create'
            set switches \
                '--no-pull'\t'Do not pull the container\'s images' \
                '--with-pull'\t'Pull the container\'s images' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--auth'\t''\t'Base64 of USER:PASSWORD' \
                '-T'\t''\t'Time limit of each call, instead of --timeout' \
                '--cancel-timeout'\t''\t'Time limit of each call, instead of --timeout' \
                '--creds'\t''\t'Credentials for a pull' \
                '-pt'\t''\t'Time limit of each pull (default: none)' \
                '--pull-timeout'\t''\t'Time limit of each pull (default: none)' \
                '-u'\t''\t'User name; asks for the password' \
                '--username'\t''\t'User name; asks for the password'
            set positionals '@' '@file' '@file'
            set nested \
                'jsonschema'\t'Print the JSON Schemas of pod and container configurations' \
                'js'\t'Print the JSON Schemas of pod and container configurations'
        case 'create jsonschema' 'create js'
            set switches \
                '-p'\t'The schema of a pod' \
                '--pod'\t'The schema of a pod' \
                '-c'\t'The schema of a container' \
                '--container'\t'The schema of a container' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
        case 'run'
            set switches \
                '--no-pull'\t'Do not pull the container\'s images' \
                '--with-pull'\t'Pull the container\'s images' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--auth'\t''\t'Base64 of USER:PASSWORD' \
                '-T'\t''\t'Time limit of each call, instead of --timeout' \
                '--cancel-timeout'\t''\t'Time limit of each call, instead of --timeout' \
                '--creds'\t''\t'Credentials for a pull' \
                '-pt'\t''\t'Time limit of each pull (default: none)' \
                '--pull-timeout'\t''\t'Time limit of each pull (default: none)' \
                '-r'\t''\t'Runtime handler of the pod sandbox' \
                '--runtime'\t''\t'Runtime handler of the pod sandbox' \
                '-u'\t''\t'User name; asks for the password' \
                '--username'\t''\t'User name; asks for the password'
            set positionals '@file' '@file'
            set nested \
                'jsonschema'\t'Print the JSON Schemas of pod and container configurations' \
                'js'\t'Print the JSON Schemas of pod and container configurations'
        case 'run jsonschema' 'run js'
            set switches \
                '-p'\t'The schema of a pod' \
                '--pod'\t'The schema of a pod' \
                '-c'\t'The schema of a container' \
                '--container'\t'The schema of a container' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
        case 'start'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set positionals '@'
            set endless 1
        case 'stop'
            set switches \
                '-a'\t'Stop all running containers' \
                '--all'\t'Stop all running containers' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-t'\t''\t'Seconds from the stop signal to SIGKILL; 0 kills immediately' \
                '--timeout'\t''\t'Seconds from the stop signal to SIGKILL; 0 kills immediately'
            set positionals '@'
            set endless 1
        case 'rm'
            set switches \
                '-a'\t'Remove all containers' \
                '--all'\t'Remove all containers' \
                '-f'\t'Stop it first if it is running' \
                '--force'\t'Stop it first if it is running' \
                '-k'\t'Keep the log files on this host' \
                '--keep-logs'\t'Keep the log files on this host' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set positionals '@'
            set endless 1
        case 'update'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--cpu-count'\t''\t'Windows only; ignored here' \
                '--cpu-maximum'\t''\t'Windows only; ignored here' \
                '--cpu-period'\t''\t'CFS period in microseconds' \
                '--cpu-quota'\t''\t'CFS quota in microseconds' \
                '--cpu-share'\t''\t'Relative CPU weight (shares)' \
                '--cpuset-cpus'\t''\t'CPUs, such as 0-2,7' \
                '--cpuset-mems'\t''\t'Memory nodes, such as 0-1' \
                '--memory'\t''\t'Memory limit in bytes' \
                '--oom-score-adj'\t''\t'OOM score adjustment, from -1000 to 1000'
            set positionals '@'
            set endless 1
        case 'checkpoint'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-e'\t'@file'\t'Archive to write on the node' \
                '--export'\t'@file'\t'Archive to write on the node'
            set positionals '@'
            set endless 1
        case 'exec'
            set switches \
                '-e'\t'Exit with 0 even if the command fails or no container is selected' \
                '--ignore-errors'\t'Exit with 0 even if the command fails or no container is selected' \
                '-i'\t'Forward standard input to the command' \
                '--interactive'\t'Forward standard input to the command' \
                '-l'\t'Only the newest, in any state' \
                '--latest'\t'Only the newest, in any state' \
                '-x'\t'Do not print the IDs of selected containers' \
                '--parallel'\t'Do not print the IDs of selected containers' \
                '-q'\t'Print nothing but the command\'s output' \
                '--quiet'\t'Print nothing but the command\'s output' \
                '-s'\t'Run without a stream; print the output when the command ends' \
                '--sync'\t'Run without a stream; print the output when the command ends' \
                '-t'\t'Allocate a terminal; detach with Ctrl-P Ctrl-Q' \
                '--tty'\t'Allocate a terminal; detach with Ctrl-P Ctrl-Q' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--image'\t'@'\t'Only those created from this image' \
                '--label'\t''\t'Only those with this label; repeatable' \
                '-n'\t''\t'Only the N newest, in any state; 0: all' \
                '--last'\t''\t'Only the N newest, in any state; 0: all' \
                '--name'\t''\t'Only those with a matching name' \
                '-p'\t'@'\t'Only those of this pod sandbox' \
                '--pod'\t'@'\t'Only those of this pod sandbox' \
                '--state'\t'created|running|exited|unknown'\t'Only containers in this state' \
                '--timeout'\t''\t'With --sync: kill the command after N seconds; 0: never' \
                '--tls-ca'\t'@file'\t'CA certificates that verify the stream\'s server' \
                '--tls-cert'\t'@file'\t'Client certificate for the stream' \
                '--tls-key'\t'@file'\t'Private key of the client certificate' \
                '--tls-sni'\t''\t'Server name to verify in the stream\'s certificate' \
                '--tls-server-name'\t''\t'Server name to verify in the stream\'s certificate' \
                '-r'\t'auto|spdy|websocket'\t'Streaming protocol; auto picks one that can signal the end of stdin, else the newest' \
                '--transport'\t'auto|spdy|websocket'\t'Streaming protocol; auto picks one that can signal the end of stdin, else the newest'
            set positionals '@' '@remote'
            set endless 1
            set remote 1
        case 'attach'
            set switches \
                '-i'\t'Forward standard input to the container' \
                '--stdin'\t'Forward standard input to the container' \
                '-t'\t'The container has a terminal; detach with Ctrl-P Ctrl-Q' \
                '--tty'\t'The container has a terminal; detach with Ctrl-P Ctrl-Q' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--tls-ca'\t'@file'\t'CA certificates that verify the stream\'s server' \
                '--tls-cert'\t'@file'\t'Client certificate for the stream' \
                '--tls-key'\t'@file'\t'Private key of the client certificate' \
                '--tls-sni'\t''\t'Server name to verify in the stream\'s certificate' \
                '--tls-server-name'\t''\t'Server name to verify in the stream\'s certificate' \
                '-r'\t'auto|spdy|websocket'\t'Streaming protocol; auto picks one that can signal the end of stdin, else the newest' \
                '--transport'\t'auto|spdy|websocket'\t'Streaming protocol; auto picks one that can signal the end of stdin, else the newest'
            set positionals '@'
        case 'port-forward'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--address'\t''\t'Where to listen (default: localhost); repeatable' \
                '--tls-ca'\t'@file'\t'CA certificates that verify the stream\'s server' \
                '--tls-cert'\t'@file'\t'Client certificate for the stream' \
                '--tls-key'\t'@file'\t'Private key of the client certificate' \
                '--tls-sni'\t''\t'Server name to verify in the stream\'s certificate' \
                '--tls-server-name'\t''\t'Server name to verify in the stream\'s certificate' \
                '-r'\t'auto|spdy|websocket'\t'Stream protocol; auto is spdy, which can close one direction alone' \
                '--transport'\t'auto|spdy|websocket'\t'Stream protocol; auto is spdy, which can close one direction alone'
            set positionals '@' ''
            set endless 1
        case 'debug'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--busybox'\t'@file'\t'A static busybox (default: the host\'s)' \
                '--tools'\t'@'\t'Use the programs of this image, which is pulled if it is absent' \
                '--progress'\t'auto|bar|plain|json|none'\t'How to show progress; auto is bars on a terminal'
            set positionals '@' ''
            set endless 1
            set remote 1
        case 'cp'
            set switches \
                '-a'\t'Keep owners, times, and set-id and sticky bits' \
                '--archive'\t'Keep owners, times, and set-id and sticky bits' \
                '-L'\t'If SRC is a link, copy its target' \
                '--follow-link'\t'If SRC is a link, copy its target' \
                '--in-place'\t'Write into a single file that is mounted at DST' \
                '--no-clobber'\t'Do not replace existing files' \
                '-q'\t'Print nothing but errors' \
                '--quiet'\t'Print nothing but errors' \
                '--sweep'\t'Only remove what killed copies have left' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--max-entries'\t''\t'Refuse to copy more files, directories and links than this; 0: no limit' \
                '--max-size'\t''\t'Refuse to copy more than this, such as 10Gi' \
                '--method'\t'auto|rpc|node|exec'\t'Use the runtime\'s RPCs, this node\'s file systems, or tar in the container' \
                '--progress'\t'auto|bar|plain|json|none'\t'How to show progress; auto is bars on a terminal' \
                '--tls-ca'\t'@file'\t'CA certificates that verify the stream\'s server' \
                '--tls-cert'\t'@file'\t'Client certificate for the stream' \
                '--tls-key'\t'@file'\t'Private key of the client certificate' \
                '--tls-sni'\t''\t'Server name to verify in the stream\'s certificate' \
                '--tls-server-name'\t''\t'Server name to verify in the stream\'s certificate' \
                '-r'\t'auto|spdy|websocket'\t'Streaming protocol; auto picks one that can signal the end of stdin, else the newest' \
                '--transport'\t'auto|spdy|websocket'\t'Streaming protocol; auto picks one that can signal the end of stdin, else the newest'
            set positionals '@path' '@path'
        case 'pods'
            set switches \
                '-l'\t'Only the newest, in any state' \
                '--latest'\t'Only the newest, in any state' \
                '--no-headers'\t'Omit the header line' \
                '--no-trunc'\t'Show full IDs and digests' \
                '-q'\t'Print IDs only' \
                '--quiet'\t'Print IDs only' \
                '-v'\t'Print the details of each' \
                '--verbose'\t'Print the details of each' \
                '-w'\t'Refresh on every change, until Ctrl-C' \
                '--watch'\t'Refresh on every change, until Ctrl-C' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--id'\t'@'\t'Only the pod sandbox with this ID or name' \
                '--label'\t''\t'Only those with this label; repeatable' \
                '-n'\t''\t'Only the N newest, in any state; 0: all' \
                '--last'\t''\t'Only the N newest, in any state; 0: all' \
                '--name'\t''\t'Only those with a matching name' \
                '--namespace'\t''\t'Only those in a matching pod namespace' \
                '-o'\t'json|yaml|table|wide|jsonpath=|custom-columns='\t'json, yaml, table, wide, jsonpath=TEMPLATE or custom-columns=NAME:PATH[,...]' \
                '--output'\t'json|yaml|table|wide|jsonpath=|custom-columns='\t'json, yaml, table, wide, jsonpath=TEMPLATE or custom-columns=NAME:PATH[,...]' \
                '--sort-by'\t'created|state|name|namespace|attempt|runtime|uid'\t'Sort by a column, such as created, or a field, .createdAt; with -, descending' \
                '-s'\t'ready|notready'\t'Only those in this state' \
                '--state'\t'ready|notready'\t'Only those in this state'
        case 'inspectp'
            set switches \
                '-l'\t'Only the newest, in any state' \
                '--latest'\t'Only the newest, in any state' \
                '-q'\t'Omit runtime-specific information' \
                '--quiet'\t'Omit runtime-specific information' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--label'\t''\t'Only those with this label; repeatable' \
                '-n'\t''\t'Only the N newest, in any state; 0: all' \
                '--last'\t''\t'Only the N newest, in any state; 0: all' \
                '--name'\t''\t'Only those with a matching name' \
                '--namespace'\t''\t'Only those in a matching pod namespace' \
                '-o'\t'json|yaml|go-template|table|jsonpath='\t'Output format' \
                '--output'\t'json|yaml|go-template|table|jsonpath='\t'Output format' \
                '-s'\t'ready|notready'\t'Only those in this state' \
                '--state'\t'ready|notready'\t'Only those in this state' \
                '--template'\t''\t'For --output go-template'
            set positionals '@'
            set endless 1
        case 'statsp'
            set switches \
                '--no-headers'\t'Omit the header line' \
                '-w'\t'Refresh until Ctrl-C' \
                '--watch'\t'Refresh until Ctrl-C' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--id'\t'@'\t'Only this pod sandbox' \
                '--label'\t''\t'Only those with this label; repeatable' \
                '-o'\t'json|yaml|table|jsonpath=|custom-columns='\t'Output format' \
                '--output'\t'json|yaml|table|jsonpath=|custom-columns='\t'Output format' \
                '-s'\t''\t'Seconds between the two measurements' \
                '--seconds'\t''\t'Seconds between the two measurements' \
                '--sort-by'\t'pod|mem|cpu'\t'Sort by a column, such as pod, or a field, .attributes.metadata.name; with -, descending'
            set positionals '@'
        case 'metricsp'
            set switches \
                '-w'\t'Refresh until Ctrl-C' \
                '--watch'\t'Refresh until Ctrl-C' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-o'\t'json|yaml|jsonpath='\t'Output format' \
                '--output'\t'json|yaml|jsonpath='\t'Output format'
        case 'metricdescs'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-o'\t'json|yaml|jsonpath='\t'Output format' \
                '--output'\t'json|yaml|jsonpath='\t'Output format'
        case 'why'
            set switches \
                '--no-kube'\t'Do not query the API server about the pod' \
                '-w'\t'Without POD: refresh until Ctrl-C' \
                '--watch'\t'Without POD: refresh until Ctrl-C' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-o'\t'json|yaml|go-template|table|jsonpath='\t'Output format' \
                '--output'\t'json|yaml|go-template|table|jsonpath='\t'Output format' \
                '--template'\t''\t'For --output go-template' \
                '--admin-socket'\t'@socket'\t'Admin socket of the proxy on this node; queried if it exists'
            set positionals '@'
        case 'runp'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-T'\t''\t'Time limit of each call, instead of --timeout' \
                '--cancel-timeout'\t''\t'Time limit of each call, instead of --timeout' \
                '-r'\t''\t'Runtime handler of the pod sandbox' \
                '--runtime'\t''\t'Runtime handler of the pod sandbox'
            set positionals '@file'
            set nested \
                'jsonschema'\t'Print the JSON Schema of pod configurations' \
                'js'\t'Print the JSON Schema of pod configurations'
        case 'runp jsonschema' 'runp js'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
        case 'stopp'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set positionals '@'
            set endless 1
        case 'rmp'
            set switches \
                '-a'\t'Remove all pod sandboxes' \
                '--all'\t'Remove all pod sandboxes' \
                '-f'\t'Stop it first if it is running' \
                '--force'\t'Stop it first if it is running' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set positionals '@'
            set endless 1
        case 'images' 'image' 'img'
            set switches \
                '--digests'\t'Show digests' \
                '--no-headers'\t'Omit the header line' \
                '--no-trunc'\t'Show full IDs and digests' \
                '--pinned'\t'Show which images are pinned' \
                '-q'\t'Print IDs only' \
                '--quiet'\t'Print IDs only' \
                '-v'\t'Print the details of each' \
                '--verbose'\t'Print the details of each' \
                '-w'\t'Refresh on every change, until Ctrl-C' \
                '--watch'\t'Refresh on every change, until Ctrl-C' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-f'\t'dangling=true|dangling=false|reference=|before=|since='\t'dangling=true|false, reference=REGEX, before=IMAGE or since=IMAGE; repeatable' \
                '--filter'\t'dangling=true|dangling=false|reference=|before=|since='\t'dangling=true|false, reference=REGEX, before=IMAGE or since=IMAGE; repeatable' \
                '-o'\t'json|yaml|table|wide|jsonpath=|custom-columns='\t'json, yaml, table, wide, jsonpath=TEMPLATE or custom-columns=NAME:PATH[,...]' \
                '--output'\t'json|yaml|table|wide|jsonpath=|custom-columns='\t'json, yaml, table, wide, jsonpath=TEMPLATE or custom-columns=NAME:PATH[,...]' \
                '--sort-by'\t'image|digest|size|pinned|user'\t'Sort by a column, such as size, or a field, .size; with -, descending'
            set positionals '@'
        case 'inspecti'
            set switches \
                '-q'\t'Omit runtime-specific information' \
                '--quiet'\t'Omit runtime-specific information' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-f'\t'dangling=true|dangling=false|reference=|before=|since='\t'dangling=true|false, reference=REGEX, before=IMAGE or since=IMAGE; repeatable' \
                '--filter'\t'dangling=true|dangling=false|reference=|before=|since='\t'dangling=true|false, reference=REGEX, before=IMAGE or since=IMAGE; repeatable' \
                '--name'\t''\t'Only images with this name' \
                '-o'\t'json|yaml|go-template|table|jsonpath='\t'Output format' \
                '--output'\t'json|yaml|go-template|table|jsonpath='\t'Output format' \
                '--template'\t''\t'For --output go-template'
            set positionals '@'
            set endless 1
        case 'imagefsinfo'
            set switches \
                '--no-headers'\t'Omit the header line' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-o'\t'json|yaml|go-template|table|wide|jsonpath='\t'Output format; wide also shows the free space' \
                '--output'\t'json|yaml|go-template|table|wide|jsonpath='\t'Output format; wide also shows the free space' \
                '--template'\t''\t'For --output go-template'
        case 'pull'
            set switches \
                '--no-manifest'\t'On CRI-O, do not query the registry for layer sizes; shows bytes without percentages' \
                '--keep-going'\t'With --from: continue after a failure' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-a'\t''\t'Annotation of the image; repeatable' \
                '--annotation'\t''\t'Annotation of the image; repeatable' \
                '--auth'\t''\t'Base64 of USER:PASSWORD' \
                '--creds'\t''\t'Credentials for a pull' \
                '--pod-config'\t'@file'\t'Pull for the pod of this JSON or YAML file' \
                '-pt'\t''\t'Time limit of each pull (default: none)' \
                '--pull-timeout'\t''\t'Time limit of each pull (default: none)' \
                '-u'\t''\t'User name; asks for the password' \
                '--username'\t''\t'User name; asks for the password' \
                '--progress'\t'auto|bar|plain|json|none'\t'How to show progress; auto is bars on a terminal' \
                '--max-parallel-image-pulls'\t''\t'Limit on parallel pulls by all pycrictl processes on the node; 0: no limit. With a limit, images already present are not pulled again' \
                '--when-full'\t'wait|retry'\t'With a limit: wait in line, or retry a few times' \
                '--retry-interval'\t''\t'With retry: pause between attempts (default: 10s)' \
                '--retries'\t''\t'With retry: number of retries' \
                '--from'\t'@file'\t'Pull the images in FILE: one per line, or images: in YAML; - is stdin' \
                '--parallel'\t''\t'Pull this many images at once (default: the limit, else 1)'
            set positionals '@'
            set endless 1
            set nested \
                'jsonschema'\t'Print the JSON Schema of pod configurations' \
                'js'\t'Print the JSON Schema of pod configurations'
        case 'pull jsonschema' 'pull js'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
        case 'rmi'
            set switches \
                '-a'\t'Remove all images' \
                '--all'\t'Remove all images' \
                '-q'\t'Remove images that are not pinned and not used by containers or pod sandboxes' \
                '--prune'\t'Remove images that are not pinned and not used by containers or pod sandboxes' \
                '--dry-run'\t'Only show what would be removed' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set positionals '@'
            set endless 1
        case 'image-pull-progress'
            set switches \
                '--follow'\t'Keep watching when no pull is left, until Ctrl-C' \
                '--aggregate'\t'Show only the total' \
                '--no-manifest'\t'On CRI-O, do not query the registry for layer sizes; shows bytes without percentages' \
                '--no-kube'\t'Do not query the API server for pods that need images' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-c'\t'@'\t'Only for this container' \
                '--container'\t'@'\t'Only for this container' \
                '--image'\t'@'\t'Only pulls of this image' \
                '--progress'\t'auto|bar|plain|json|none'\t'How to show progress; auto is bars on a terminal' \
                '--source'\t'auto|cri|containerd|crio'\t'Where progress comes from: the runtime\'s ImagePullProgress, containerd\'s API, or the files of CRI-O' \
                '--containerd-namespace'\t''\t'Only pulls in this containerd namespace, such as k8s.io, default or moby' \
                '--admin-socket'\t'@socket'\t'Admin socket of the proxy on this node; queried if it exists' \
                '--interval'\t''\t'Polling interval (default: 0.25 for bars, else 1)'
            set positionals '@'
        case 'version'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-o'\t'json|yaml|table|jsonpath='\t'Output format' \
                '--output'\t'json|yaml|table|jsonpath='\t'Output format'
        case 'doctor'
            set switches \
                '--no-registry'\t'Skip the registry checks' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--registry'\t''\t'Test the connection to this registry; repeatable (default: the registries of the node\'s images)' \
                '-o'\t'json|yaml|go-template|table|jsonpath='\t'Output format' \
                '--output'\t'json|yaml|go-template|table|jsonpath='\t'Output format' \
                '--template'\t''\t'For --output go-template' \
                '--admin-socket'\t'@socket'\t'Admin socket of the proxy on this node; queried if it exists'
        case 'top'
            set switches \
                '--once'\t'Print the screen once as text' \
                '--no-kube'\t'Do not query the API server for what pods wait for' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-o'\t'table|json'\t'json: print its data once' \
                '--output'\t'table|json'\t'json: print its data once' \
                '--interval'\t''\t'Pause between refreshes' \
                '--admin-socket'\t'@socket'\t'Admin socket of the proxy on this node; queried if it exists'
        case 'info'
            set switches \
                '-q'\t'Omit runtime-specific information' \
                '--quiet'\t'Omit runtime-specific information' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-o'\t'json|yaml|go-template|jsonpath='\t'Output format' \
                '--output'\t'json|yaml|go-template|jsonpath='\t'Output format' \
                '--template'\t''\t'For --output go-template'
        case 'runtime-config'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-o'\t'json|yaml|table|jsonpath='\t'Output format' \
                '--output'\t'json|yaml|table|jsonpath='\t'Output format'
        case 'config'
            set switches \
                '--list'\t'Show all keys' \
                '--no-headers'\t'Omit the header line' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--get'\t'runtime-endpoint|image-endpoint|timeout|debug|pull-image-on-create|disable-pull-on-run|max-retries'\t'Show the value of a key' \
                '-o'\t'json|yaml|table|jsonpath='\t'Output format' \
                '--output'\t'json|yaml|table|jsonpath='\t'Output format' \
                '--set'\t'runtime-endpoint=|image-endpoint=|timeout=|debug=|pull-image-on-create=|disable-pull-on-run=|max-retries='\t'Set a key; repeatable'
            set positionals 'runtime-endpoint|image-endpoint|timeout|debug|pull-image-on-create|disable-pull-on-run|max-retries' ''
        case 'update-runtime-config'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '-p'\t''\t'Address range of the node\'s pods' \
                '--pod-cidr'\t''\t'Address range of the node\'s pods'
        case 'proxy'
            set switches \
                '--serialize-image-pulls'\t'Same as a limit of 1' \
                '--no-manifest'\t'On CRI-O, do not query the registry for layer sizes; shows bytes without percentages' \
                '--take-over'\t'Take over from the running proxy with the same admin socket; no call fails' \
                '--reload'\t'Replace the running proxy by a new one with the same command line; no call fails' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--upstream'\t'@socket'\t'The runtime\'s socket (default: the first that answers)' \
                '--listen'\t'@socket'\t'The proxy\'s own socket (default: unix:///run/pycrictl/cri.sock)' \
                '--max-parallel-image-pulls'\t''\t'Pull at most N images at once (default: 0, no limit)' \
                '--when-full'\t'wait|retry'\t'With no free slot, wait in line or retry a few times (default: wait)' \
                '--retry-interval'\t''\t'With retry: the pause between tries (default: 10s)' \
                '--retries'\t''\t'With retry: how many retries (default: 3)' \
                '--kubelet-config'\t'@file'\t'Take the limit and the quotas of copies from kubelet\'s configuration, such as /var/lib/kubelet/config.yaml' \
                '--config'\t'@file'\t'TOML file with these options as keys (default: /etc/pycrictl.toml)' \
                '--drain-timeout'\t''\t'How long pulls and copies may continue after SIGTERM (default: no limit)' \
                '--admin-socket'\t'@socket'\t'Socket for pull-limiter (default: unix:///run/pycrictl/admin.sock)' \
                '--stream-address'\t''\t'Address to serve streams on (default: 127.0.0.1:0, any port)' \
                '--container-copy-size-limit'\t''\t'Largest copy, such as 10Gi (default: 0, no limit)' \
                '--container-copy-entry-limit'\t''\t'Accept at most N entries in one copy (default: 1000000; 0 for no limit)' \
                '--container-copies-per-pod'\t''\t'Make at most N copies per pod at once (default: 0, no limit)' \
                '--spool-dir'\t'@directory'\t'Where to spool copies out of containers (default: /var/tmp)' \
                '--state-dir'\t'@directory'\t'Where to keep the history of pulls (default: none; as a service, its StateDirectory=)' \
                '--log-format'\t'text|json'\t'Format of log lines (default: text)' \
                '--log-level'\t'debug|info|warning|error'\t'Minimum level to log (default: info, with --debug debug)' \
                '--metrics-listen'\t''\t'Serve /metrics for Prometheus, /livez and /readyz there (default: nowhere)' \
                '--tracing-endpoint'\t''\t'Send a trace of each pull and copy to this OpenTelemetry collector (default: none)' \
                '--events'\t'@file'\t'Write Events about the pulls of pods, with the kubelet\'s own kubeconfig or this one (default: no Events)'
        case 'pull-limiter'
            set switches \
                '-w'\t'Refresh until Ctrl-C' \
                '--watch'\t'Refresh until Ctrl-C' \
                '--failed'\t'With history: only failed pulls' \
                '--no-headers'\t'With history: omit the headings and the summary' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--admin-socket'\t'@socket'\t'The proxy\'s admin socket' \
                '-o'\t'json|yaml|table|jsonpath='\t'Output format' \
                '--output'\t'json|yaml|table|jsonpath='\t'Output format' \
                '--interval'\t''\t'With --watch: seconds between refreshes (default: 2)' \
                '--since'\t''\t'With history: only pulls that ended within the last DURATION, such as 24h' \
                '--image'\t''\t'With history: only images whose name contains TEXT' \
                '--sort-by'\t'ended|image|pod|waited|pulled|got|reused|rate|attempts|outcome'\t'With history: sort by a column, such as rate; with -, descending'
            set positionals 'status|set|cancel|history' ''
        case 'agent'
            set switches \
                '--events'\t'Write Events about the pulls of this node; not if its proxy writes them' \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set valued \
                '--listen'\t''\t'Where to serve (default: 0.0.0.0:10281)' \
                '--node-name'\t''\t'The name of this node (default: $NODE_NAME, else the kubelet\'s)' \
                '--kubeconfig'\t'@file'\t'Connect to the API server with this kubeconfig (default: as the pod\'s service account)' \
                '--tls-cert'\t'@file'\t'Serve with this certificate (default: one made at each start)' \
                '--tls-key'\t'@file'\t'The key of --tls-cert' \
                '--client-ca'\t'@file'\t'The CA of the cluster\'s users, for the kubelet\'s routes (default: as the API server says)' \
                '--peer-ca'\t'@file'\t'The CA of all agents\' certificates (default: that of the Secret pycrictl-agent-ca; with --tls-cert they are not verified)' \
                '--peer-token'\t'@file'\t'The service account\'s token for the audience progress.pycrictl.dev, which agents use to authenticate to each other (default: /var/run/secrets/progress.pycrictl.dev/token)' \
                '--peer-namespace'\t''\t'The namespace of the agents\' Service, pycrictl-agent (default: this pod\'s; none with --kubeconfig)' \
                '--namespaces'\t''\t'Serve only the pods of these namespaces, which needs no ClusterRole; the same for all agents; repeatable (default: all)' \
                '--admin-socket'\t'@socket'\t'Admin socket of the proxy on this node; queried if it exists (default: unix:///run/pycrictl/admin.sock)' \
                '--metrics-listen'\t''\t'Serve /metrics for Prometheus, /livez and /readyz there, without TLS, for everyone (default: nowhere)' \
                '--spool-dir'\t'@directory'\t'Serve copies of containers\' files, and spool them in this folder (default: no copies)' \
                '--spool-size'\t''\t'Total space for copies there, such as 50Gi; 0 for no limit (default: 10Gi)' \
                '--container-copy-size-limit'\t''\t'Largest copy, such as 2Gi (default: 0, no limit)' \
                '--container-copies-per-pod'\t''\t'Make at most N copies per pod at once (default: 0, no limit)' \
                '--kubelet-config'\t'@file'\t'Take the quotas of copies that are not given from kubelet\'s configuration, such as /var/lib/kubelet/config.yaml; enableDebuggingHandlers: false there turns copies and streams off' \
                '--log-format'\t'text|json'\t'Format of log lines (default: text)' \
                '--log-level'\t'debug|info|warning|error'\t'Minimum level to log (default: info, with --debug debug)'
        case 'completion'
            set switches \
                '-h'\t'Show this message and exit' \
                '--help'\t'Show this message and exit'
            set positionals 'bash|zsh|fish'
        case help h
            set nested \
                'ps'\t'List containers, running ones by default' \
                'inspect'\t'Show the details of containers' \
                'logs'\t'Show the logs of containers' \
                'stats'\t'Show the resource usage of containers' \
                'events'\t'Show container events as they happen' \
                'event'\t'Show container events as they happen' \
                'create'\t'Create a container in a pod sandbox' \
                'run'\t'Run a container in a new pod sandbox' \
                'start'\t'Start created containers' \
                'stop'\t'Stop running containers' \
                'rm'\t'Remove containers' \
                'update'\t'Change the resource limits of containers' \
                'checkpoint'\t'Checkpoint running containers' \
                'exec'\t'Run a command in containers' \
                'attach'\t'Attach to a running container' \
                'port-forward'\t'Forward local ports to a pod sandbox' \
                'debug'\t'Run a shell beside a container that has none' \
                'cp'\t'Copy files to or from a running container' \
                'pods'\t'List pod sandboxes' \
                'inspectp'\t'Show the details of pod sandboxes' \
                'statsp'\t'Show the resource usage of pods' \
                'metricsp'\t'Show the metrics of pods' \
                'metricdescs'\t'List the pod metrics that the runtime provides' \
                'why'\t'Show why pods are not running' \
                'runp'\t'Start a new pod sandbox' \
                'stopp'\t'Stop running pod sandboxes' \
                'rmp'\t'Remove pod sandboxes and their containers' \
                'images'\t'List the images on the node' \
                'image'\t'List the images on the node' \
                'img'\t'List the images on the node' \
                'inspecti'\t'Show the details of images' \
                'imagefsinfo'\t'Show the disk usage of images' \
                'pull'\t'Pull images from a registry' \
                'rmi'\t'Remove images' \
                'image-pull-progress'\t'Show the progress of image pulls, whoever started them' \
                'version'\t'Show the runtime\'s name and version' \
                'doctor'\t'Examine the node: runtime, disks, clock, settings, proxy, leftovers, registries' \
                'top'\t'Show the node live on one screen: problems first, then pulls, then the rest' \
                'info'\t'Show the status and configuration of the runtime' \
                'runtime-config'\t'Show the settings that kubelet takes from the runtime' \
                'config'\t'Show or change the configuration file' \
                'update-runtime-config'\t'Update the runtime\'s configuration' \
                'proxy'\t'Serve the CRI in front of a runtime: pull progress, a pull limit, copies' \
                'pull-limiter'\t'Show or set a running proxy\'s limit on image pulls; show its last pulls' \
                'agent'\t'Serve the node\'s image pulls to the cluster, as an API of the API server' \
                'completion'\t'Print a shell completion script'
    end
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
                for endpoint in unix:///run/containerd/containerd.sock unix:///run/crio/crio.sock unix:///var/run/cri-dockerd.sock unix:///run/k3s/containerd/containerd.sock unix:///run/k0s/containerd.sock unix:///var/snap/microk8s/common/run/containerd.sock
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
