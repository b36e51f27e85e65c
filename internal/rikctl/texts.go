package rikctl

import "github.com/spf13/cobra"

const rootLong = `rikctl manages a rik cluster. It creates workloads, starts instances of them,
shows their state and deletes them.

A type has a singular, a plural and a short name: workload, workloads and wl are
the same.

  rikctl create workload -f web.yaml     create a workload; starts no instance
  rikctl create instance -w web -r 3     start three instances of it
  rikctl get instances                   show their state
  rikctl logs workload/web -f            print their logs`

// text is rik's help for a command of kubectl.
type text struct{ short, long, example string }

var texts = map[string]text{
	"get": {"List objects", `List objects of one or more types, as the table of the server or in another form with -o.`, `
rikctl get workloads
rikctl get instances -o wide -w
rikctl get instances -l rik.dev/workload=web --field-selector status.phase=Running
rikctl get instance web-x7k2p -o jsonpath='{.status.phase}'
rikctl get nodes,tenants
rikctl get apps
rikctl get functions -o wide`},
	"apply": {"Apply configuration from files",
		`Create or change objects so that they match files. The server merges the fields
of a file into the object. Fields that the file does not have stay as they are.
A field that another owner set to a different value is a conflict, unless
--force-conflicts is given.`, `
rikctl apply -f web.yaml
rikctl apply -f nginx-deployment.yaml # name, repo, version, action: deploy
rikctl apply -f manifests/ --dry-run=server
cat web.yaml | rikctl apply -f -`},
	"delete": {"Delete objects",
		`Delete objects and wait until they are gone. Deleting a workload also deletes its
instances. An instance is gone when its node has confirmed that it removed
everything of it. --force does not wait for a lost node; that node stops the
instance when it returns.`, `
rikctl delete workload web
rikctl delete app helloworld
rikctl delete instance web-x7k2p --grace-period=5
rikctl delete instance web-x7k2p --force
rikctl delete instances -l rik.dev/workload=web --wait=false`},
	"wait": {"Wait until objects are in a state",
		`Wait until objects have a condition or a value, are created or are gone. The exit
code is 5 if the timeout expires first.`, `
rikctl wait instance/web-x7k2p --for=phase=Running --timeout=60s
rikctl wait instances -l rik.dev/workload=web --for=condition=Ready
rikctl wait workload/web --for=jsonpath='{.status.readyReplicas}'=3
rikctl wait workload/web --for=condition=Available
rikctl wait node --all --for=condition=Ready
rikctl wait instance/web-x7k2p --for=delete`},
	"events": {"List events", `List events, the latest last.`, `
rikctl events
rikctl events --for instance/web-x7k2p --watch
rikctl events --types=Warning -A`},
	"label": {"Set or remove labels", `Set labels, or remove one with a name that ends in -.`, `
rikctl label node worker-1 disk=ssd
rikctl label node worker-1 disk-
rikctl label workload web tier=front --overwrite`},
	"annotate": {"Set or remove annotations", `Set annotations, or remove one with a name that ends in -.`, `
rikctl annotate workload web owner=shop-team
rikctl annotate workload web owner-`},
	"patch": {"Change fields of an object", `Change fields of an object by a merge patch, a JSON patch or a strategic merge patch.`, `
rikctl patch workload web --type=merge -p '{"spec":{"replicas":5}}'
rikctl patch node worker-1 --type=json -p '[{"op":"remove","path":"/spec/taints"}]'`},
	"edit": {"Change an object in an editor", `Open an object in $EDITOR and send the changes to the server.`, `
rikctl edit workload web`},
	"diff": {"Show what apply would change",
		`Show what apply would change. The exit code is 0 without differences, 1 with
differences, and above 1 on an error.`, `
rikctl diff -f web.yaml`},
	"explain": {"Describe the fields of a type", `Describe the fields of a type.`, `
rikctl explain workload.spec.strategy
rikctl explain instance --recursive`},
	"api-resources": {"List the types of the server", `List the types of the server, with their short names.`, `
rikctl api-resources --api-group=rik.dev`},
	"auth": {"Show what a user may do", `Show what a user may do.`, `
rikctl auth whoami
rikctl auth can-i create instances
rikctl auth can-i --list`},
}

// topics returns the pages of help that are not about a command.
func topics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "exit-codes", Short: "What the exit codes mean", Long: `The exit codes of rikctl:

  0  done
  1  an error that has no code of its own
  2  the command line or the configuration is wrong; no request was sent
  3  the object, or its type, does not exist
  4  a conflict: the object exists already, or another client changed it
  5  the server was not reachable, or a timeout expired
  6  the server refused the request as invalid
  7  the server does not know the user, or the user lacks permission
  130  the user interrupted the command with Ctrl-C

If a command acts on several objects, the code is that of the first error. The
exit code of "rikctl exec" is that of the command that it ran, and the one of
"rikctl diff" is 1 if there are differences. The one of "rikctl plan" is 1 if
something would change, and 2 on an error without a code of its own.`},
		{Use: "configuration", Short: "Where rikctl finds its configuration", Long: `The configuration names the cluster that rikctl connects to, and the user. rikctl
uses the first of these that exists:

  1. the file given by --config
  2. the file that $RIKCONFIG names
  3. ~/.rik/config.yaml
  4. config.yaml in the data directory of this machine's server
     ($DATABASE_LOCATION, or /var/lib/rik/data), which only root can read

--kubeconfig FILE uses a kubeconfig instead of all of these. A file is YAML or
JSON:

  cluster:
    name: home
    server: https://192.0.2.10:5000
    certificateAuthority: ca.crt      # a path, PEM, or PEM in base64
    clientCertificate: admin.crt      # likewise
    clientKey: admin.key              # likewise
    token: ...                        # instead of a certificate: the token, or a path
  clusters: []                        # others, for "rikctl config use NAME"

$RIK_CLUSTER_NAME and $RIK_CLUSTER_SERVER override cluster.name and
cluster.server.`},
	}
}
