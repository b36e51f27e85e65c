# Prints the state of a machine, sorted: files with the hashes of their content, mounts, links,
# routes, rules, kernel settings, cgroups, units, processes.
#
# Left out are the kernel's own file systems, the directory of the test, and what changes by itself
# or with each package, whatever it contains: the state of systemd and of the journal, and the
# databases, logs and caches of package managers.
left_out='/proc /sys /dev/pts /test /run/systemd /run/log /run/udev /run/host /run/dbus /run/user /run/credentials
  /var/log/journal /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/log/wtmp /var/log/lastlog
  /var/log/dnf.log /var/log/dnf.librepo.log /var/log/dnf.rpm.log /var/log/hawkey.log
  /var/cache/apt /var/cache/dnf /var/cache/ldconfig /var/cache/debconf /var/lib/apt /var/lib/dnf /var/lib/dpkg /var/lib/rpm /root/.rpmdb
  /var/lib/systemd/random-seed /var/lib/systemd/timers /var/lib/systemd/catalog
  /run/utmp /run/agetty.reload /run/nologin /etc/ld.so.cache'
# These are private directories of services with random names, and copies of files that every change
# of a user makes, and files that Docker removes a minute after their container.
ignored='^/run/docker/netns/.|/(var/)?tmp/systemd-private-|^/etc/(passwd|shadow|group|gshadow|subuid|subgid)-$|^/etc/\.pwd\.lock$'
# The databases and directories of container engines change with each start of a container. Files of
# containers that end are part of their names, so the names count.
names_only='^/var/lib/(docker|containerd|containers|cni)/|^/run/(docker|containerd|containers|libpod|netns)/'
prune=()
for dir in $left_out; do prune+=(-path "$dir" -prune -o); done
find / "${prune[@]}" -printf '%p\t%y %m %U:%G %l\n' 2>/dev/null | awk -F'\t' -v ignored="$ignored" '$1 !~ ignored { print "file", $1, $2 }' | sort
find / "${prune[@]}" -type f -print 2>/dev/null | awk -v ignored="$ignored" -v names_only="$names_only" '$0 !~ ignored && $0 !~ names_only' |
  tr '\n' '\0' | xargs -0 -r sha256sum 2>/dev/null | awk '{ print "content", $2, substr($1, 1, 16) }' | sort
# systemd-nspawn mounts files with random names.
awk '{ print "mount", $4, $5, $9 }' /proc/self/mountinfo | grep -v '/\.#' | sort
ip -o link | sed -E 's/^[0-9]+: ([^:@]+).*/link \1/' | sort
ip rule | sed 's/^/rule /'
ip -6 rule | sed 's/^/rule6 /'
ip route show table all | grep -v 'table local' | sed 's/^/route /' | sort
for save in iptables-save iptables-legacy-save ip6tables-save ip6tables-legacy-save; do
  $save 2>/dev/null | sed -E '/^#/d; s/ \[[0-9]+:[0-9]+\]$//' | sed "s/^/$save /"
done
nft -s list ruleset 2>/dev/null | sed 's/^/nft /'
sysctl -a --pattern '^net\.' 2>/dev/null | grep -v -E 'nf_conntrack_count|\.stat\.|ip_local_reserved_ports' | sed 's/^/sysctl /' | sort
for group in /sys/fs/cgroup/*/; do
  group=$(basename "$group")
  find "/sys/fs/cgroup/$group" -type d -printf "cgroup $group /%P\n" | grep -v -E '/(user|session|run)-|/systemd-(hostnamed|timedated|localed|logind|tmpfiles)|\.(mount|socket|timer|swap)$' | sort
done
systemctl list-unit-files --plain --no-legend | sed 's/^/unit /; s/ *$//' | sort
ps -eo user:20=,args= | grep -v -E '^[^ ]+ +(\[|ps |sleep |bash /test|sort|sed |grep |\(sd-pam|/lib/systemd/systemd-(hostnamed|timedated|localed))' | sed 's/^/process /' | sort
