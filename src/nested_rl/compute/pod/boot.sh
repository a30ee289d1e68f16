#!/bin/bash
# What a rented pod runs instead of its image's own command: first the watchdog, then sshd.
#
# The watchdog ends the pod through the provider, with the pod's own key, when NRL_DEADLINE (seconds since the epoch) has passed or
# nobody has touched NRL_LEASE for NRL_LEASE_S seconds (NRL_GRACE_S while it is not there yet). It asks for ever: a program that
# merely ends would be started again, and the pod would go on costing money.
set -u
home=${NRL_HOME:-/var/lib/nested_rl}
api=${NRL_API:-https://api.runpod.io}
pod=$api/v2/pods/${RUNPOD_POD_ID:-}
mkdir -p "$home" && chmod 700 "$home"

# The key goes through standard input, where no other user of this machine can read it.
by_curl() { # METHOD URL [BODY]
    printf 'header = "Authorization: Bearer %s"\n' "${RUNPOD_API_KEY:-}" |
        curl -fsS -m 20 -A curl/nested-rl -K - -X "$1" ${3:+-H 'Content-Type: application/json' --data "$3"} "$2" >/dev/null
}

by_python() { # METHOD URL [BODY]
    RUNPOD_API_KEY=${RUNPOD_API_KEY:-} python3 - "$@" <<'PYTHON'
import os, sys, urllib.request
method, url, *body = sys.argv[1:]
headers = {"Authorization": "Bearer " + os.environ["RUNPOD_API_KEY"], "User-Agent": "curl/nested-rl", "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(url, "".join(body).encode() or None, headers, method=method), timeout=20).read()
PYTHON
}

end_pod() {
    by_curl POST "$pod/action" '{"action": "terminate"}' ||
        by_python POST "$pod/action" '{"action": "terminate"}' ||
        by_curl DELETE "$pod" ||
        by_python DELETE "$pod" ||
        runpodctl pod delete "$RUNPOD_POD_ID" ||
        runpodctl remove pod "$RUNPOD_POD_ID"
}

watch() {
    began=$(date +%s) pause=1
    while :; do
        now=$(date +%s) why=
        if [ "$now" -ge "$NRL_DEADLINE" ]; then
            why="its deadline has passed"
        elif [ -e "$NRL_LEASE" ]; then
            [ $((now - $(stat -c %Y "$NRL_LEASE"))) -ge "$NRL_LEASE_S" ] && why="nobody has touched its lease"
        elif [ $((now - began)) -ge "$NRL_GRACE_S" ]; then
            why="nobody has taken it"
        fi
        if [ -n "$why" ]; then
            echo "nested-rl: this pod ends: $why"
            end_pod
            sleep "$pause"
            pause=$((pause < 60 ? pause * 2 : 60))
        else
            pause=1
            sleep "${NRL_LOOK_S:-10}"
        fi
    done
}

if [ "${1:-}" = watch ]; then
    watch
fi
(while :; do bash "$0" watch; sleep 1; done) &

if ! command -v sshd >/dev/null && [ ! -x /usr/sbin/sshd ]; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y openssh-server >/dev/null
fi
sshd=$(command -v sshd || echo /usr/sbin/sshd)
mkdir -p /run/sshd 2>/dev/null
[ -e "$home/host_key" ] || ssh-keygen -q -t ed25519 -N '' -C '' -f "$home/host_key"
echo "$PUBLIC_KEY" >"$home/authorized"
cat >"$home/sshd_config" <<CONFIG
Port ${NRL_SSH_PORT:-22}
HostKey $home/host_key
AuthorizedKeysFile $home/authorized
PidFile none
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowStreamLocalForwarding yes
MaxStartups 100
MaxSessions 100
CONFIG
echo "nested-rl-host-key: $(cat "$home/host_key.pub")"
# What is logged in to gets none of this environment, least of all the key.
while :; do
    env -i PATH="$PATH" HOME="${HOME:-/root}" "$sshd" -D -e -f "$home/sshd_config"
    sleep 1
done
