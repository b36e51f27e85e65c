package apitest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// call is a request and whether the server accepts it.
type call struct {
	method, path, body string
	taken              bool
}

func TestServerHoldsRequestsAgainstTheAPI(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	boot := call{"PUT", "/boot-source", fmt.Sprintf(`{"kernel_image_path":%q}`, file), true}
	start := call{"PUT", "/actions", `{"action_type":"InstanceStart"}`, true}
	pause := call{"PATCH", "/vm", `{"state":"Paused"}`, true}
	snapshot := fmt.Sprintf(`{"snapshot_path":"%s.s","mem_file_path":"%s.m"}`, file, file)
	load := fmt.Sprintf(`{"snapshot_path":%q,"mem_backend":{"backend_type":"File","backend_path":%q}}`, file, file)
	drive := func(id, inBody string) call {
		return call{"PUT", "/drives/" + id, fmt.Sprintf(`{"drive_id":%q,"path_on_host":%q,"is_root_device":false}`, inBody, file), false}
	}
	for name, calls := range map[string][]call{
		"a good order":            {boot, start, pause, {"PUT", "/snapshot/create", snapshot, true}, {"PATCH", "/vm", `{"state":"Resumed"}`, true}},
		"start without a kernel":  {{start.method, start.path, start.body, false}},
		"two starts":              {boot, start, {start.method, start.path, start.body, false}},
		"kernel after the start":  {boot, start, {boot.method, boot.path, boot.body, false}},
		"pause before the start":  {boot, {pause.method, pause.path, pause.body, false}},
		"snapshot while running":  {boot, start, {"PUT", "/snapshot/create", snapshot, false}},
		"load after a kernel":     {boot, {"PUT", "/snapshot/load", load, false}},
		"load first":              {{"PUT", "/snapshot/load", load, true}},
		"load with two memories":  {{"PUT", "/snapshot/load", strings.Replace(load, "{", `{"mem_file_path":"a",`, 1), false}},
		"flush without metrics":   {boot, start, {"PUT", "/actions", `{"action_type":"FlushMetrics"}`, false}},
		"unknown action":          {boot, {"PUT", "/actions", `{"action_type":"Reboot"}`, false}},
		"unknown path":            {{"PUT", "/power", `{}`, false}},
		"wrong method":            {{"PATCH", "/boot-source", boot.body, false}},
		"unknown field":           {{"PUT", "/boot-source", strings.Replace(boot.body, "{", `{"kernel":"a",`, 1), false}},
		"missing field":           {{"PUT", "/boot-source", `{}`, false}},
		"missing kernel":          {{"PUT", "/boot-source", `{"kernel_image_path":"/missing"}`, false}},
		"long arguments":          {{"PUT", "/boot-source", strings.Replace(boot.body, "{", `{"boot_args":"`+strings.Repeat("a", 2048)+`",`, 1), false}},
		"no JSON":                 {{"PUT", "/boot-source", `x`, false}},
		"33 processors":           {{"PUT", "/machine-config", `{"vcpu_count":33,"mem_size_mib":128}`, false}},
		"no processor":            {{"PUT", "/machine-config", `{"vcpu_count":0,"mem_size_mib":128}`, false}},
		"half a mebibyte":         {{"PUT", "/machine-config", `{"vcpu_count":1,"mem_size_mib":0.5}`, false}},
		"memory as text":          {{"PUT", "/machine-config", `{"vcpu_count":1,"mem_size_mib":"128"}`, false}},
		"drive with a hyphen":     {drive("a-b", "a-b")},
		"drive by another name":   {drive("a", "b")},
		"drive without its file":  {{"PUT", "/drives/a", `{"drive_id":"a","path_on_host":"/missing","is_root_device":false}`, false}},
		"limiter without refill":  {{"PUT", "/network-interfaces/a", `{"iface_id":"a","host_dev_name":"t","rx_rate_limiter":{"bandwidth":{"size":1}}}`, false}},
		"address that is none":    {{"PUT", "/network-interfaces/a", `{"iface_id":"a","host_dev_name":"t","guest_mac":"x"}`, false}},
		"the host's own vsock ID": {{"PUT", "/vsock", `{"guest_cid":2,"uds_path":"v"}`, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := NewServer("a", Version)
			for _, c := range calls {
				r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				s.ServeHTTP(w, r)
				if taken := w.Code == http.StatusNoContent; taken != c.taken {
					t.Errorf("%s %s %s = %d %s, want it taken: %v", c.method, c.path, c.body, w.Code, w.Body, c.taken)
				}
			}
		})
	}
}
