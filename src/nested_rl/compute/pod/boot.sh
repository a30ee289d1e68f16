#!/bin/bash
# What a rented pod runs instead of its image's own command: first the watchdog, then the jobs' user and sshd.
#
# The watchdog ends the pod through the provider, with the pod's own key, when NRL_DEADLINE (seconds since the epoch) has passed, when
# the pod is NRL_TTL_S old, or when nobody has touched NRL_LEASE for NRL_LEASE_S seconds (NRL_GRACE_S while nobody ever has). It asks
# for ever: a program that merely ends would be started again, and the pod would go on costing money.
#
# The pod's clock may be wrong, or be set while it runs. It is looked at once, for what is left to the deadline, and only as far as
# NRL_TTL_S allows; from then on seconds are counted by the kernel's uptime, and a lease counts as touched when its time changes.
set -u
home=${NRL_HOME:-/var/lib/nested_rl}
api=${NRL_API:-https://api.runpod.io}
pod=$api/v2/pods/${RUNPOD_POD_ID:-}
python=${NRL_PYTHON:-python3}
mkdir -p "$home" && chmod 700 "$home"

# The key goes through standard input, where no other user of this machine can read it.
by_curl() { # METHOD URL [BODY]
    printf 'header = "Authorization: Bearer %s"\n' "${RUNPOD_API_KEY:-}" |
        curl -fsS -m 20 -A curl/nested-rl -K - -X "$1" ${3:+-H 'Content-Type: application/json' --data "$3"} "$2" >/dev/null
}

by_python() { # METHOD URL [BODY]
    RUNPOD_API_KEY=${RUNPOD_API_KEY:-} "$python" - "$@" <<'PYTHON'
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

uptime_s() {
    local up
    if read -r up _ 2>/dev/null <"${NRL_UPTIME:-/proc/uptime}"; then
        echo "${up%%.*}"
    else
        date +%s
    fi
}

# The uptime at which the pod is to end. What an earlier watchdog of this boot has found holds: a restart gives no new time.
end_s() {
    local left boot known before end
    left=$((NRL_DEADLINE - $(date +%s || echo 0)))
    [ "$left" -gt "${NRL_TTL_S:-$left}" ] && left=$NRL_TTL_S
    end=$(($(uptime_s) + left))
    boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo unknown)
    if read -r known before 2>/dev/null <"$home/end" && [ "$known" = "$boot" ] && [ "$before" -lt "$end" ]; then
        end=$before
    fi
    echo "$boot $end" >"$home/end"
    echo "$end"
}

watch() {
    local end began now why pause=1 seen='' stamp patience
    end=$(end_s)
    began=$(uptime_s)
    while :; do
        now=$(uptime_s) why=
        stamp=$(stat -c %y "$NRL_LEASE" 2>/dev/null)
        [ -n "$stamp" ] && [ "$stamp" != "$seen" ] && seen=$stamp began=$now
        patience=${seen:+$NRL_LEASE_S}
        if [ "$now" -ge "$end" ]; then
            why="its deadline has passed"
        elif [ $((now - began)) -ge "${patience:-$NRL_GRACE_S}" ]; then
            why=${seen:+"nobody has touched its lease"}
            why=${why:-nobody has taken it}
        fi
        if [ -n "$why" ]; then
            echo "nested-rl: this pod ends: $why"
            end_pod
            sleep "$pause"
            pause=$((pause < 30 ? pause * 2 : 60))
        else
            pause=1
            sleep "${NRL_LOOK_S:-10}"
        fi
    done
}

# Jobs run as a user who is nobody else here: what the runner and this script have is closed to it. Only where a pod is wholly ours.
make_user() {
    [ "$(id -u)" = 0 ] && [ -n "${NRL_JOB_USER:-}" ] || return 0
    id "$NRL_JOB_USER" >/dev/null 2>&1 ||
        useradd --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$NRL_JOB_USER" ||
        echo "nested-rl: no user $NRL_JOB_USER can be made here: each job gets a number of its own"
    # An account that is locked may not log in, even with a key.
    if grep -qs '^root:!' /etc/shadow; then
        usermod -p '*' root
    fi
}

# Who asks for the host key over a line that anybody may have cut into can check it: only this pod and its owner know NRL_NONCE.
proof() { # KEY
    NRL_NONCE=${NRL_NONCE:-} "$python" -c '
import hashlib, hmac, os, sys
print(hmac.new(os.environ["NRL_NONCE"].encode(), sys.argv[1].encode(), hashlib.sha256).hexdigest())' "$1"
}

case ${1:-} in
watch) watch ;;
user)
    make_user
    exit
    ;;
esac
(while :; do
    bash "$0" watch
    sleep 1
done) &

make_user
while ! command -v sshd >/dev/null && [ ! -x /usr/sbin/sshd ]; do
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y openssh-server >/dev/null || sleep 15
done
sshd=$(command -v sshd || echo /usr/sbin/sshd)
mkdir -p /run/sshd 2>/dev/null
[ -e "$home/host_key" ] || ssh-keygen -q -t ed25519 -N '' -C '' -f "$home/host_key"
read -r kind key _ <"$home/host_key.pub"
echo "$PUBLIC_KEY" >"$home/authorized"
# Programs there get the PATH and the home of the image, and nothing else of this environment, least of all the key. (sshd takes one
# SetEnv. With SHLVL a bash does not take itself for the first, which would read its user's start-up file for every command.)
cat >"$home/sshd_config" <<CONFIG
Port ${NRL_SSH_PORT:-22}
HostKey $home/host_key
VersionAddendum nested-rl=$key:$(proof "$kind $key")
AuthorizedKeysFile $home/authorized
PidFile none
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowStreamLocalForwarding yes
MaxStartups 100
MaxSessions 100
SetEnv "PATH=$PATH" "HOME=${HOME:-/root}" SHLVL=1
CONFIG
echo "nested-rl-host-key: $kind $key"
while :; do
    env -i PATH="$PATH" HOME="${HOME:-/root}" "$sshd" -D -e -f "$home/sshd_config"
    sleep 1
done
