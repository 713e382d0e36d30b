#!/bin/bash
# HAProxy, and beside it a look at the certificates every few seconds: HAProxy reads its files at its
# start only. A renewed one is handed to the running process; a reload would take every worker for
# down until its first good check.
set -u

for variable in TRANSFORMER_SERVING_TLS_{CERT,KEY,CLIENT_CA}; do
    [ -n "${!variable:-}" ] || unset "$variable"
done
cert=${TRANSFORMER_SERVING_TLS_CERT:-}
key=${TRANSFORMER_SERVING_TLS_KEY:-}
ca=${TRANSFORMER_SERVING_TLS_CLIENT_CA:-}
# HAProxy would open the door to everybody, in plain HTTP.
if [ -n "$ca" ] && [ -z "$cert" ]; then
    echo "error: TRANSFORMER_SERVING_TLS_CLIENT_CA needs TRANSFORMER_SERVING_TLS_FOLDER, with tls.crt" \
        "and tls.key: callers show certificates over TLS only" >&2
    exit 2
fi

# One command to HAProxy's socket, from stdin; prints what it says.
tell() {
    exec 3<>/dev/tcp/127.0.0.1/8082 || return
    cat >&3
    cat <&3
    exec 3>&-
}

# renew KIND NAME FILE...: a command's payload begins after its first line and ends at an empty one.
# A pair that does not belong together, as between the replacements of its two files, is refused and
# the old one kept.
renew() {
    kind=$1 name=$2
    shift 2
    said=$({ echo "set ssl $kind $name <<"; sed -s '/^[[:space:]]*$/d; $a\' "$@"; echo; } | tell)
    case $said in
        *created* | *updated*) said=$(echo "commit ssl $kind $name" | tell) ;;
    esac
    case $said in
        *Success*) echo "in service anew: $*" ;;
        *)
            echo "abort ssl $kind $name" | tell >/dev/null
            echo "in service as before: $*: $(echo "$said" | tr '\n' ' ')" >&2
            ;;
    esac
}

# watch KIND NAME FILE...: renews when a file changes.
watch() {
    last=$(cksum "${@:3}" 2>&1)
    while sleep 5; do
        now=$(cksum "${@:3}" 2>&1)
        [ "$now" = "$last" ] || renew "$@"
        last=$now
    done
}

# No children of HAProxy's: it would wait for them at its end. The container's init takes them.
[ -z "$cert" ] || (watch cert @front_door/certificate "$cert" "$key" &)
[ -z "$ca" ] || (watch ca-file "$ca" "$ca" &)
exec haproxy -W -db -f /usr/local/etc/haproxy/haproxy.cfg
