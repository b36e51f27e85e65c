package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/pages"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// listed is the output of rikctl image ls.
type listed struct {
	Items []struct {
		Node, Reference string
		Imported        bool
		UsedBy          []string
	}
}

func imagesOf(c *rikcluster.Cluster, args ...string) (list listed, err error) {
	out := c.TryRikctl(append([]string{"image", "ls", "-o", "json"}, args...)...)
	if out.Err != nil {
		return list, out.Err
	}
	return list, json.Unmarshal([]byte(out.Stdout), &list)
}

// TestPrivilegedAirgap runs the commands of docs/airgap.md as they are printed. The names of the images
// lead to no registry, so the instances run only if their images came from archives.
func TestPrivilegedAirgap(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{})
	layouts := filepath.Join(c.Dir, "sample-images")
	writeSamples(t, c, filepath.Join(layouts, "hello"))
	paths := strings.NewReplacer("/var/lib/rik/images/hello ", filepath.Join(layouts, "hello")+" ", "/var/lib/rik/images", c.ImageDir(), "sudo make sample-images", ":", "sudo ", "")
	work := t.TempDir()
	page := pages.Open(t, "docs/airgap.md")
	for _, b := range page.All() {
		switch {
		case b.Language == "yaml":
			writeNamed(t, work, paths.Replace(b.Text))
		case page.Mine(b):
			text := paths.Replace(page.Take(b))
			if b.Section == "See and remove images" && strings.Contains(text, "delete workload") {
				refusesToRemove(t, c)
			}
			runBlock(t, c, work, b.Section, text)
			if b.Section == "Load images when a node starts" {
				reload(t, c)
			}
		}
	}
	list, err := imagesOf(c)
	if err != nil || len(list.Items) != 1 || list.Items[0].Reference != "example.com/hello:v1" {
		t.Errorf("in the end the node has %+v, %v, want only v1", list, err)
	}
}

// reload removes an image whose archive is in the node's directory, adds a damaged archive, and starts
// the node again.
func reload(t *testing.T, c *rikcluster.Cluster) {
	t.Helper()
	c.Rikctl("image", "rm", "example.com/hello:v1")
	if list, err := imagesOf(c); err != nil || len(list.Items) != 1 {
		t.Fatalf("after the removal the node has %+v, %v, want only v2", list, err)
	}
	damaged := filepath.Join(c.ImageDir(), "damaged.tar")
	if err := os.WriteFile(damaged, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Process("server").Stop()
	c.Restart("server")
	c.AwaitNodes(1)
	c.Eventually(func() error {
		list, err := imagesOf(c, "example.com/hello:v1")
		if err != nil {
			return err
		}
		if len(list.Items) != 1 || !list.Items[0].Imported {
			return fmt.Errorf("the node has %+v", list)
		}
		if text := c.Rikctl("describe", "node", "node-1"); !strings.Contains(text, "ImageArchivesRefused") || !strings.Contains(text, "damaged.tar: ") {
			return errors.New("the node does not report the damaged archive: " + text)
		}
		return nil
	})
}

// refusesToRemove checks that an image stays while instances use it, and that they are named.
func refusesToRemove(t *testing.T, c *rikcluster.Cluster) {
	t.Helper()
	out := c.TryRikctl("image", "rm", "example.com/hello:v1")
	if out.Err == nil || !strings.Contains(out.Stderr, "is used by instances default/hello-airgap-") {
		t.Errorf("the removal of an image in use = %q, %v, want a refusal that names the instances", out.Stderr, out.Err)
	}
	list, err := imagesOf(c, "example.com/hello:v1")
	if err != nil || len(list.Items) != 1 || len(list.Items[0].UsedBy) != 2 {
		t.Errorf("the image in use is %+v, %v, want two users", list, err)
	}
}
