package packages

import (
	"strings"

	"github.com/google/go-cmp/cmp"
)

// neighbor is a container of Docker that runs on a machine before rik is installed. A nil neighbor
// checks nothing.
type neighbor struct {
	*machine
	// before is its state: the process with the time of its start, and Docker's firewall rules.
	before string
}

// startDocker starts Docker and a container of it, whose port 8080 is published at port 18080. A
// client keeps one connection to it open.
func (m *machine) startDocker() *neighbor {
	m.Helper()
	m.put(environment(m, "RIK_SAMPLE_PROGRAM"))
	m.run(`systemctl start docker
mkdir -p /test/other && mv /test/hello-program /test/other/hello
tar -C /test/other -c hello | docker import -c 'ENTRYPOINT ["/hello"]' - other:v1
docker run -d --name other --hostname other -p 18080:8080 other:v1 -listen=:8080 -udp=:9090`)
	n := &neighbor{machine: m}
	n.answers()
	n.keep("18080", "docker")
	n.before = n.state()
	return n
}

// answers waits until the container answers, at the published port and at its own address.
func (n *neighbor) answers() {
	n.Helper()
	n.eventually("curl -sf -m 5 http://127.0.0.1:18080/", "hello from other")
	n.eventually("curl -sf -m 5 http://$(docker inspect -f '{{.NetworkSettings.IPAddress}}' other):8080/", "hello from other")
}

// state returns the process of the container, and the firewall rules without those of rik: byte for
// byte, but for the counters.
func (n *neighbor) state() string {
	n.Helper()
	return n.run(`docker inspect -f '{{.State.Pid}} {{.State.StartedAt}} {{.RestartCount}}' other
pgrep -x dockerd; pgrep -x containerd
for save in iptables-save ip6tables-save iptables-legacy-save ip6tables-legacy-save; do
  echo "$save:"
  # A line of a chain of the kernel with the policy ACCEPT says nothing.
  $save | sed -E '/^#/d; s/ \[[0-9]+:[0-9]+\]$//' | grep -v -E 'RIKLET|^:[A-Z]+ ACCEPT$|^COMMIT$|^\*' || true
done`)
}

// same fails the test if the container or the rules have changed.
func (n *neighbor) same(after string) {
	if n == nil {
		return
	}
	n.Helper()
	n.answers()
	if diff := cmp.Diff(strings.Split(n.before, "\n"), strings.Split(n.state(), "\n")); diff != "" {
		n.Errorf("after %s, Docker's container or its rules are not what they were (-before +after):\n%s", after, diff)
	}
}

// end fails the test unless the connection to the container is still open.
func (n *neighbor) end() {
	if n == nil {
		return
	}
	n.Helper()
	n.kept("docker")
}
