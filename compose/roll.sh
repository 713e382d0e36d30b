#!/bin/sh
# Replaces the containers of a service one by one: a new one is started and becomes healthy before
# an old one is told to end, so that there are never fewer than before.
#
#   compose/roll.sh SERVICE [options of docker compose, such as --env-file FILE -f FILE ...]
#
# A balancer must stand before SERVICE: it is for inference, with compose/scale.yaml.
set -eu

if [ $# -lt 1 ]; then
    echo "usage: compose/roll.sh SERVICE [docker compose options]" >&2
    exit 2
fi
service=$1
shift
# Seconds that a new container may take until it is healthy.
limit=${ROLL_SECONDS:-300}
case $limit in
    *[!0-9]*)
        echo "error: ROLL_SECONDS must be a number of seconds, not '$limit'" >&2
        exit 2
        ;;
esac

compose() { docker compose "$@"; }

containers() { compose "$@" ps --quiet "$service"; }

# Those that were not there when $before was made.
new_ones() { containers "$@" | grep -v -F "$before"; }

health() { docker inspect --format '{{.State.Status}} {{if .State.Health}}{{.State.Health.Status}}{{end}}' "$1"; }

# Waits for the container that was not there before; ends the roll when it does not become healthy.
# That one is stopped and stays, for its log: the next roll counts what runs.
wait_for_new() {
    waited=0
    until [ "$(health "$1")" = "running healthy" ]; do
        # One that refuses its settings ends at once, and Docker starts it again and again.
        restarts=$(docker inspect --format '{{.RestartCount}}' "$1")
        if [ "$waited" -ge "$limit" ] || [ "$restarts" -ge 3 ]; then
            echo "error: $1 is not healthy after $waited s: $(health "$1"), restarted $restarts times;" \
                "the old containers serve on, it is stopped; see: docker logs $1; where it needs longer," \
                "raise ROLL_SECONDS" >&2
            docker stop "$1" >/dev/null
            exit 1
        fi
        sleep 1
        waited=$((waited + 1))
    done
}

# A roll that is told to end. Of an old one that is told to end already the end is waited for: the next
# roll would count it with those that run. `docker stop` once more would take its drain from it. A new
# one may run before `up` has said so.
break_off() {
    trap '' INT TERM HUP
    if [ -n "$leaving" ]; then
        echo "error: told to end; $new serves, and the end of $leaving in its place is waited for" >&2
        docker wait "$leaving" >/dev/null
        docker rm --volumes "$leaving" >/dev/null
        exit 1
    fi
    new=$(new_ones "$@") || true
    echo "error: told to end; the old containers serve on${new:+, $new is stopped}" >&2
    [ -z "$new" ] || docker stop "$new" >/dev/null
    exit 1
}

# What a container is made of: image and what compose was told. The name of an image does not tell: a
# build gives it to another one.
made_of() {
    docker inspect --format '{{.Image}} {{index .Config.Labels "com.docker.compose.config-hash"}}' "$1"
}

# SERVICE and what it depends on, such as Triton: `up SERVICE` refuses to scale any other.
begun_with() { compose "$@" config "$service" | sed -n '/^services:/,/^[^ ]/ s/^  \([^ :]*\):$/\1/p'; }

# Each of these that runs as often as it is there, as `up` would bring it to the number of the file of
# --env-file: stopped ones, too, which it counts and starts, in place of others that run. Leaving them
# out (--no-deps) gives the new containers another hash, and the next `up` would replace all.
others() {
    for other in $(begun_with "$@"); do
        if [ "$other" != "$service" ] && [ -n "$(compose "$@" ps --quiet "$other")" ]; then
            echo "--scale $other=$(compose "$@" ps --all --quiet "$other" | wc -l)"
        fi
    done
}

old=$(containers "$@")
if [ -z "$old" ]; then
    echo "error: no container of $service runs; start it with docker compose up" >&2
    exit 2
fi
count=$(echo "$old" | wc -l)
number=0
same=0
leaving=
for container in $old; do
    number=$((number + 1))
    # What has ended, as one that was told to when a roll was broken off: `up` would start it again below
    # and count it as the new one, with its old image.
    said=$(compose "$@" rm --force --volumes "$service" 2>&1) || { echo "$said" >&2; exit 1; }
    before=$(containers "$@")
    case $before in
        *"$container"*) ;;
        *)
            echo "$service: $number of $count has ended by itself"
            continue
            ;;
    esac
    wanted=$(($(echo "$before" | wc -l) + 1))
    trap 'break_off "$@"' INT TERM HUP
    # shellcheck disable=SC2046 # one word an option
    said=$(compose "$@" up --detach --no-recreate $(others "$@") \
        --scale "$service=$wanted" "$service" 2>&1) || { echo "$said" >&2; exit 1; }
    new=$(new_ones "$@")
    wait_for_new "$new"
    if [ "$(made_of "$new")" = "$(made_of "$container")" ]; then
        same=$((same + 1))
    fi
    # By its own stop signal and TRANSFORMER_SERVING_STOP_SECONDS: what runs in it ends first. A Ctrl-C
    # is every process's: ended before it has asked for the stop, it would be waited for without end.
    leaving=$container
    (trap '' INT TERM HUP && exec docker stop "$container") >/dev/null
    docker rm --volumes "$container" >/dev/null
    trap - INT TERM HUP
    leaving=
    echo "$service: $number of $count replaced"
done
# After a roll that was broken off the first ones were new already.
if [ "$same" = "$count" ]; then
    echo "note: the new containers of $service have the image and the configuration of the old ones; if" \
        "they were to have others, build the images before, or correct the file of --env-file" >&2
fi
