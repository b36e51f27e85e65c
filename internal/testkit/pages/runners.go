package pages

// runner says what runs a block of commands: a test, or nothing for a reason.
type runner struct{ test, reason string }

func by(test string) runner       { return runner{test: test} }
func except(reason string) runner { return runner{reason: reason} }

// runnerOf returns the runner of a block. That of the block comes before that of its section, and
// that of the section before that of the page.
func runnerOf(page string, b Block) runner {
	table := runners[page]
	for _, key := range []string{b.key(), b.Section} {
		if r, found := table[key]; found {
			return r
		}
	}
	return runner{}
}

const (
	guide        = "TestPrivilegedGuide"
	airgap       = "TestPrivilegedAirgap"
	installPage  = "TestPrivilegedInstallPage"
	upgradePage  = "TestPrivilegedUpgradePage"
	firewalls    = "TestPrivilegedFirewallPrograms"
	composePage  = "TestPrivilegedComposePage"
	needsMachine = "it needs another machine: "
	needsVMM     = "it needs a VMM: TestPrivilegedKinds runs functions"
	needsKcp     = "it needs two clusters: TestPrivilegedMulticluster "
)

// runners has the runner of each block of commands, by page, and by section or "SECTION NUMBER".
var runners = map[string]map[string]runner{
	"README.md": {
		"Try it 1":        by(installPage),
		"Try it 2":        by(installPage),
		"Try it 3":        by(composePage),
		"Try it 4":        except("it compiles everything and runs all tests: hack/bare.sh runs make demo and make demo-down, and the tests of the demos the scripts of the others"),
		"Many clusters 1": except(needsKcp + "does the same"),
	},
	"CONTRIBUTING.md": {
		"Language": except("make check runs the last of these commands"),
	},
	"docs/faults.md": {
		"Faults of the published RIK that rik does not have": except("it runs tests that make test runs"),
	},
	"docs/install.md": {
		"Debian and Ubuntu":                by(installPage),
		"Fedora and others with RPM":       by(upgradePage),
		"An archive, on any Linux":         by(installPage),
		"An archive, on any Linux 3":       by("TestPrivilegedControlPlaneOnly"),
		"With containers":                  by(composePage),
		"Podman":                           by(composePage),
		"Upgrade the containers":           except("it needs images of two versions: TestPrivilegedContainers loads them and runs up again"),
		"Build for the other architecture": except("it installs a cross compiler on the machine: hack/cross.sh prints the same lines"),
		"From source":                      except("it compiles everything: TestPrivilegedInstall installs the same files, and TestPrivilegedPackages starts the same service"),
		"Run a sample application":         by(installPage),
		"Configure the service":            by(installPage),
		"Add a node":                       by(installPage),
		"Check a download":                 by(installPage),
		"Make the packages":                except("hack/installs.sh runs make packages before the tests, and hack/reproducible.sh both in two directories"),
	},
	"docs/upgrade.md": {
		"Upgrade":                       by(upgradePage),
		"Packages of Debian and Ubuntu": by(upgradePage),
		"RPM packages":                  by(upgradePage),
		"The archive":                   by(upgradePage),
		"Data that was kept":            by(upgradePage),
	},
	"docs/airgap.md": {
		"What to carry over":             except("it needs a registry in the internet: internal/riklet/image reads archives in these formats"),
		"A sample archive":               by(airgap),
		"Import images":                  by(airgap),
		"Load images when a node starts": by(airgap),
		"Deploy":                         by(airgap),
		"See and remove images":          by(airgap),
	},
	"docs/troubleshooting.md": {
		"Check a machine":  by(installPage),
		"In scripts":       by(installPage),
		"Report a problem": by(installPage),
	},
	"docs/guide.md": {
		"Manual: you start the instances":            by(guide),
		"Automatic: rik keeps a number of instances": by(guide),
		"Update, roll back, scale":                   by(guide),
		"Look inside":                                by(guide),
		"Resources, probes, volumes":                 by(guide),
		"Private registries":                         by(guide),
		"Tenants and users":                          by(guide),
		"kubectl":                                    by(guide),
		"Kubernetes' Deployments":                    by(guide),
		"The published API":                          by(guide),
		"Firewalls of other programs":                by(firewalls),
		"Add a server":                               except(needsMachine + "TestPrivilegedServers adds servers"),
		"Remove or replace a server":                 except(needsMachine + "TestPrivilegedServers removes one, which joins again"),
		"Back up":                                    by(guide),
		"Verify a backup":                            by(guide),
		"Restore a server":                           by(guide),
		"User guide":                                 except("the test writes the sample image by itself"),
		"Start a server":                             except("the cluster of the test is this"),
		"Install it":                                 except("it compiles everything; see docs/install.md, From source"),
		"Point rikctl at it":                         except(needsMachine + "the tests of internal/rikctl run these commands"),
		"A Function":                                 except(needsVMM),
		"Look inside one":                            except(needsVMM),
		"What a node needs for it":                   except("it installs packages on the machine"),
		"Apps":                                       except("it needs a server with the archive: TestPrivilegedKinds runs apps"),
		"Suspend and resume":                         except(needsVMM),
		"Add one":                                    except(needsMachine + "TestPrivilegedComponentsAlone, and TestPrivilegedInstallPage adds nodes"),
		"Label, taint, cordon, drain":                except(needsMachine + "the tests of internal/rikctl run these commands"),
		"Remove one":                                 except(needsMachine + "TestPrivilegedLostNode removes one"),
		"Reach into the cluster":                     except("it runs until it is stopped"),
		"Nodes that wait":                            except("it needs a lost datastore"),
		"Check the files":                            except("it stops the machine's service: the tests of internal/apiserver check such files"),
		"Wait in a script":                           except(needsMachine + "the tests of internal/rikctl read these documents"),
		"Components alone":                           except("TestPrivilegedComponentsAlone starts them"),
		"Clean up":                                   except("it removes the cluster of the machine"),
	},
	"docs/multicluster.md": {
		"First steps":          except(needsKcp + "takes these steps"),
		"Clusters":             except(needsKcp + "registers clusters"),
		"Unregister a cluster": except(needsKcp + "unregisters clusters"),
		"Negotiation":          except(needsKcp + "publishes types"),
		"Comparing two CRDs":   except("it needs a cluster: the tests of compat compare documents"),
		"Syncing":              except(needsKcp + "runs syncers"),
		"Fencing":              except("it needs two clusters: TestPrivilegedSplitterFenceDrill fences"),
		"Splitting":            except("it needs two clusters: TestPrivilegedSplitter splits"),
		"Explain and rehearse": except("it needs two clusters: TestPrivilegedSplitter asks these questions"),
		"Metrics":              except("it runs until it is stopped"),
	},
}
