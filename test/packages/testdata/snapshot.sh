# Prints the state of a machine, sorted: files, mounts, links, routes, rules, cgroups, processes.
# Directories that change on every machine by themselves are left out, and the cache of rikctl in
# the home directory of its user, which belongs to the user.
left_out='/proc /sys /dev /tmp /test /run/systemd /run/log /run/udev /run/host /run/dbus /run/lock /run/user /run/credentials /var/log /var/cache /var/tmp /var/lib/apt /var/lib/dpkg /var/lib/rpm /root/.rpmdb /var/lib/systemd /root/.rik/cache'
prune=()
for dir in $left_out; do prune+=(-path "$dir" -prune -o); done
find / "${prune[@]}" -printf 'file %y %m %u %p %l\n' 2>/dev/null | grep -v -E ' /(root/.rik|run/utmp|run/agetty.reload|run/nologin|etc/ld.so.cache|etc/machine-id) $' | sort
# systemd-nspawn mounts files with random names.
awk '{ print "mount", $4, $5, $9 }' /proc/self/mountinfo | grep -v '/\.#' | sort
ip -o link | sed -E 's/^[0-9]+: ([^:@]+).*/link \1/' | sort
ip rule | sed 's/^/rule /'
ip route show table all | grep -v 'table local' | sed 's/^/route /' | sort
# A table without rules and with the policy ACCEPT is the same as no table.
for save in iptables-save iptables-legacy-save ip6tables-save ip6tables-legacy-save; do
  $save 2>/dev/null | grep -v -E '^(#|\*|COMMIT|:[A-Z]+ ACCEPT )' | sed "s/^/$save /"
done
for group in memory pids cpu unified; do
  [ ! -d /sys/fs/cgroup/$group ] || find /sys/fs/cgroup/$group -type d -printf "cgroup $group /%P\n" | grep -v -E '(\.service|\.slice|\.scope|\.mount|\.socket)' | sort
done
ps -eo args= | grep -v -E '^(\[|ps |bash /test|sort|sed |grep |\(sd-pam|/lib/systemd/systemd-(hostnamed|timedated|localed))' | sed 's/^/process /' | sort
