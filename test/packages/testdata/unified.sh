# Runs in a virtual machine with version 2 of cgroups alone, on which rik is installed. Prints a line
# "RESULT NAME VALUE" for each fact that the test requires, and everything else for people.
exec >/dev/ttyS0 2>&1
result() { echo "RESULT $1 $2"; }
# retry COMMAND... repeats a command until it succeeds. The machine is emulated, and slow.
retry() {
  local end=$((SECONDS + 600))
  until "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 1; done
}
process() { pgrep -f '^/hello -listen' | head -1; }
killed() { rikctl get instances -l rik.dev/workload=eater -o yaml | grep -q OOMKilled; }

result filesystem "$(stat -fc %T /sys/fs/cgroup)"
result apparmor "$(cat /sys/module/apparmor/parameters/enabled)"
result v1 "$(grep -c ' - cgroup ' /proc/self/mountinfo)"
retry rikctl apply -f /test/unified.yaml
retry curl -sf -m 5 http://127.0.0.1:30080/ && result answer yes
pid=$(process)
group=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$pid/cgroup")
echo "the cgroup of the instance is $group"
result memory "$(cat "$group/memory.max")"
result cpu "$(cat "$group/cpu.max")"
result pids "$(cat "$group/pids.max")"
retry killed && result eater OOMKilled
systemctl restart rik
retry rikctl get nodes
result survives "$([ "$(process)" = "$pid" ] && echo yes)"
rik doctor --only cgroup -o wide && result doctor ok
rikctl get nodes,instances -o wide
rikctl get instances -o yaml
apt-get purge -qq -y rik riklet rikctl
result left "$(find /sys/fs/cgroup -name '*rik*' | wc -l)"
journalctl -n 40 --no-pager -u rik
result end yes
poweroff
