package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/riklet/join"
)

// runDoctor runs doctor on this machine, with directories that do not exist yet.
func runDoctor(t *testing.T, usual doctor.Role, dir string, args ...string) (string, error) {
	t.Helper()
	c := DoctorCommand(usual)
	var out bytes.Buffer
	c.SetOut(&out)
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(append([]string{"--data-dir", dir + "/data", "--state-dir", dir + "/state", "--run-dir", dir + "/run"}, args...))
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func TestDoctorUsage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		says string
	}{
		{[]string{"-o", "yaml"}, `--output "yaml": use wide or json`},
		{[]string{"--only", "disks"}, "disks is neither a check nor an area: use one of the areas certificates, cgroup"},
		{[]string{"--role", "client"}, `--role "client"`},
		{[]string{"--server", "http://x"}, "only https is supported"},
		{[]string{"--cluster-cidr", "fd00::/8"}, "--cluster-cidr"},
		{[]string{"now"}, "unexpected argument"},
	} {
		out, err := runDoctor(t, doctor.RoleServer, t.TempDir(), tc.args...)
		if !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), tc.says) || out != "" {
			t.Errorf("doctor %q = %q, %v, want a usage error with %q", tc.args, out, err, tc.says)
		}
	}
}

func TestDoctorJSON(t *testing.T) {
	t.Parallel()
	out, err := runDoctor(t, doctor.RoleServer, t.TempDir(), "-o", "json", "--only", "kernel-version,port-api,server", "--port", "1")
	if err != nil {
		t.Fatal(err)
	}
	var report doctor.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	if report.Role != doctor.RoleServer || report.Kernel == "" || report.Summary[doctor.OK] == 0 {
		t.Errorf("report %+v", report)
	}
	i := slices.IndexFunc(report.Findings, func(f doctor.Finding) bool { return f.ID == "port-api" })
	if i < 0 || report.Findings[i].Object != "1/tcp" || report.Findings[i].Area != doctor.AreaPorts {
		t.Errorf("findings %+v", report.Findings)
	}
}

// TestDoctorExitCode has a server that does not exist, at a port on which nothing listens.
func TestDoctorExitCode(t *testing.T) {
	t.Parallel()
	out, err := runDoctor(t, doctor.RoleServer, t.TempDir(), "--server", "https://127.0.0.1:1", "--only", "server-reachable")
	var result *doctor.ResultError
	if !errors.As(err, &result) || result.Code != doctor.ExitError || !strings.Contains(out, "127.0.0.1:1 cannot be reached: connection refused") {
		t.Errorf("doctor = %v:\n%s", err, out)
	}
}

func TestDoctorSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "agent.env")
	text := "# the node\nRIK_SERVER=https://10.0.0.1:5000\nRIK_TOKEN='secret'\nRIKLET_FLAGS=\"--state-dir /srv/riklet --node-label a=b --run-dir=/run/other --network none\"\nPORT=5443\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := doctorOptions{node: DefaultOptions()}
	flags := pflag.NewFlagSet("doctor", pflag.ContinueOnError)
	o.addFlags(flags)
	if err := flags.Parse([]string{"--config", file, "--run-dir", "/run/mine"}); err != nil {
		t.Fatal(err)
	}
	if err := o.useSettings(flags); err != nil {
		t.Fatal(err)
	}
	config, err := o.config()
	if err != nil || config.Server != "https://10.0.0.1:5000" || config.StateDir != "/srv/riklet" || config.RunDir != "/run/mine" || !config.NoNetwork || config.Role != doctor.RoleNode || o.apiPort != 5443 {
		t.Errorf("config %+v, %v", config, err)
	}
	if _, err := runDoctor(t, doctor.RoleNode, dir, "--config", filepath.Join(dir, "none")); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), "--config: open") {
		t.Errorf("a file that does not exist: %v", err)
	}
	if all, err := readSettings([]string{filepath.Join(dir, "none")}, false); err != nil || len(all) != 0 {
		t.Errorf("a default file that does not exist: %v, %v", all, err)
	}
}

func TestDoctorRole(t *testing.T) {
	t.Parallel()
	write := func(t *testing.T, path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		usual doctor.Role
		role  string
		files []string
		args  string
		want  doctor.Role
		asks  string
	}{
		"nothing, rik":      {usual: doctor.RoleServer, want: doctor.RoleServer},
		"nothing, riklet":   {usual: doctor.RoleNode, want: doctor.RoleNode},
		"a server":          {usual: doctor.RoleNode, files: []string{"data/pki/ca.crt"}, want: doctor.RoleServer, asks: "https://127.0.0.1:5000"},
		"a node":            {usual: doctor.RoleServer, files: []string{"state/" + join.File}, want: doctor.RoleNode},
		"a server to reach": {usual: doctor.RoleServer, args: "https://10.0.0.1", want: doctor.RoleNode, asks: "https://10.0.0.1"},
		"told":              {usual: doctor.RoleServer, role: "node", want: doctor.RoleNode},
	} {
		dir := t.TempDir()
		for _, f := range tc.files {
			write(t, filepath.Join(dir, f))
		}
		o := doctorOptions{
			node: Options{StateDir: dir + "/state", RunDir: dir + "/run"}, usualRole: tc.usual, dataDir: dir + "/data", server: tc.args,
			role: roleAuto, clusterCIDR: "10.62.0.0/16", serviceCIDR: "10.63.0.0/16", apiPort: 5000,
		}
		if tc.role != "" {
			o.role = tc.role
		}
		config, err := o.config()
		if err != nil || config.Role != tc.want || config.Server != tc.asks || (config.DataDir != "") != (tc.want == doctor.RoleServer) {
			t.Errorf("%s: role %q, server %q, data %q, %v; want %q, %q", name, config.Role, config.Server, config.DataDir, err, tc.want, tc.asks)
		}
	}
}
