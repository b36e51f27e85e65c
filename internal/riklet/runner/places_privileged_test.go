package runner

import (
	"os"
	"path/filepath"
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// A node's directories may be symbolic links, such as /var/run, or a link that an administrator
// created to move the data to a larger disk. The kernel lists mounts by their real path. A node
// that did not find its mounts there once deleted files through them.
func TestPrivilegedDirectoriesBehindASymlink(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	link := filepath.Join(n.dir, "link")
	if err := os.Symlink(n.dir, link); err != nil {
		t.Fatal(err)
	}
	n.cfg.Root, n.cfg.Run = filepath.Join(link, "root"), filepath.Join(link, "run")
	host := t.TempDir()
	precious := filepath.Join(host, "data", "precious")
	if err := os.Mkdir(filepath.Dir(precious), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(precious, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.objects.configMaps["cm"] = map[string][]byte{"a": []byte("1")}
	c := sh("main", "cat /cm/a; cat /data/precious; "+forever)
	c.VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "cm", MountPath: "/cm"}, {Name: "h", MountPath: "/data", SubPath: "data"}}
	in := podOf("u1", rikv1alpha1.RestartAlways, c)
	in.Template.Volumes = []rikv1alpha1.Volume{
		{Name: "cm", ConfigMap: &rikv1alpha1.ObjectVolume{Name: "cm"}},
		{Name: "h", HostPath: &rikv1alpha1.HostPathVolume{Path: host}},
	}
	n.start()
	n.ensure(in)
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	eventually(t, func() string {
		if got := n.log("u1", ""); got != "1kept" {
			return got
		}
		return ""
	})
	n.stop("u1", 0)
	if got, err := os.ReadFile(precious); err != nil || string(got) != "kept" {
		t.Errorf("the file of the node is %q, %v after the instance went, want it as it was", got, err)
	}
}
