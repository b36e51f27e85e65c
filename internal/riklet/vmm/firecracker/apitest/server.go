// Package apitest is a fake of Firecracker and its jailer, for tests on machines that have
// neither. It boots nothing. It checks every request against Firecracker's published API: paths
// and methods, fields and their limits, and the order of calls. It also checks that the named
// files exist and that the VMM's user can open them.
package apitest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
)

// Version is the version that the fake reports.
const Version = "1.12.0"

const (
	notStarted = "Not started"
	running    = "Running"
	paused     = "Paused"
)

// Server answers like a Firecracker that has just started.
type Server struct {
	id, version string

	mu         sync.Mutex
	state      string
	configured map[string]map[string]any // by path
	metrics    *os.File
	flushes    int
}

// NewServer returns a server of a version. id is the ID from the jailer.
func NewServer(id, version string) *Server {
	return &Server{id: id, version: version, state: notStarted, configured: map[string]map[string]any{}}
}

// idPattern matches the names that Firecracker accepts for drives and interfaces.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9_]+$`)

// maxBody is Firecracker's default limit for a request (51200 bytes).
const maxBody = 51200

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodGet {
		s.get(w, r)
		return
	}
	err := s.change(r)
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	// Print the error for readers of the process's output. The client also receives it.
	fmt.Fprintf(os.Stderr, "refused %s %s: %v\n", r.Method, r.URL.Path, err)
	answer(w, http.StatusBadRequest, map[string]string{"fault_message": err.Error()})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/":
		answer(w, http.StatusOK, map[string]string{"id": s.id, "state": s.state, "vmm_version": s.version, "app_name": "Firecracker"})
	case "/version":
		answer(w, http.StatusOK, map[string]string{"firecracker_version": s.version})
	default:
		answer(w, http.StatusBadRequest, map[string]string{"fault_message": "Invalid request method and/or path: GET " + r.URL.Path})
	}
}

// change checks a request and does the part that needs no guest.
func (s *Server) change(r *http.Request) error {
	path, id := r.URL.Path, ""
	for _, named := range []string{"/drives/", "/network-interfaces/"} {
		if rest, ok := strings.CutPrefix(path, named); ok {
			path, id = named, rest
		}
	}
	rules, ok := schemas[r.Method+" "+path]
	if !ok {
		return fmt.Errorf("invalid request method and/or path: %s %s", r.Method, r.URL.Path)
	}
	body, err := decode(r)
	if err != nil {
		return err
	}
	if err := rules.check("", body); err != nil {
		return err
	}
	if id != "" {
		if err := checkID(id, body); err != nil {
			return err
		}
	}
	return s.apply(path, id, body)
}

func decode(r *http.Request) (map[string]any, error) {
	if kind := r.Header.Get("Content-Type"); kind != "application/json" {
		return nil, fmt.Errorf("the content type is %q", kind)
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxBody {
		return nil, fmt.Errorf("the body has more than %d bytes", maxBody)
	}
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	var body map[string]any
	if err := d.Decode(&body); err != nil {
		return nil, fmt.Errorf("the body %.80q: %w", b, err)
	}
	if body == nil {
		return nil, fmt.Errorf("the body %.80q is no object", b)
	}
	return body, nil
}

func checkID(id string, body map[string]any) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("API resource IDs can only contain alphanumeric characters and underscores: %q", id)
	}
	for _, key := range []string{"drive_id", "iface_id"} {
		if in, ok := body[key]; ok && in != id {
			return fmt.Errorf("the id from the path [%s] does not match the id from the body [%v]", id, in)
		}
	}
	return nil
}

func (s *Server) apply(path, id string, body map[string]any) error {
	switch path {
	case "/actions":
		return s.act(body["action_type"].(string))
	case "/vm":
		return s.become(body["state"].(string))
	case "/snapshot/create":
		return s.create(body)
	case "/snapshot/load":
		return s.load(body)
	}
	if s.state != notStarted {
		return fmt.Errorf("the requested operation is not supported after starting the microVM")
	}
	if err := s.configure(path, body); err != nil {
		return err
	}
	s.configured[path+id] = body
	return nil
}

// configure checks the files that a device or the machine refers to.
func (s *Server) configure(path string, body map[string]any) error {
	switch path {
	case "/boot-source":
		return s.bootSource(body)
	case "/drives/":
		mode := os.O_RDWR
		if readOnly, _ := body["is_read_only"].(bool); readOnly {
			mode = os.O_RDONLY
		}
		return opens(body["path_on_host"].(string), mode)
	case "/network-interfaces/":
		mac, ok := body["guest_mac"].(string)
		if _, err := net.ParseMAC(mac); ok && err != nil {
			return fmt.Errorf("cannot parse the MAC address: %w", err)
		}
	case "/vsock":
		return s.listen(body["uds_path"].(string))
	case "/metrics":
		return s.openMetrics(body["metrics_path"].(string))
	}
	return nil
}

func (s *Server) bootSource(body map[string]any) error {
	for _, key := range []string{"kernel_image_path", "initrd_path"} {
		if path, ok := body[key].(string); ok {
			if err := opens(path, os.O_RDONLY); err != nil {
				return err
			}
		}
	}
	// An x86 kernel accepts 2048 bytes with the NUL.
	if arguments, _ := body["boot_args"].(string); len(arguments) > 2047 {
		return fmt.Errorf("the kernel command line is invalid: too large")
	}
	return nil
}

// opens checks that the VMM's user can open a file.
func opens(path string, mode int) error {
	f, err := os.OpenFile(path, mode, 0)
	if err != nil {
		return fmt.Errorf("unable to open: %w", err)
	}
	return f.Close()
}

// listen creates the vsock device's socket. There is no guest, so each connection ends without
// an answer, like with Firecracker.
func (s *Server) listen(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("cannot create the vsock backend: %w", err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	return nil
}

// openMetrics opens the pipe or file. It may be called only once.
func (s *Server) openMetrics(path string) error {
	if s.metrics != nil {
		return fmt.Errorf("Reinitialization of metrics not allowed.") //nolint:staticcheck,revive // its words
	}
	// Since 1.14, a pipe without a reader is refused (ENXIO).
	mode := os.O_RDWR
	if s.minor() >= 14 {
		mode = os.O_WRONLY | syscall.O_NONBLOCK
	}
	f, err := os.OpenFile(path, mode, 0)
	if err != nil {
		return fmt.Errorf("initialization of the metrics system failed: %w", err)
	}
	s.metrics = f
	return nil
}

// minor returns the second number of the version.
func (s *Server) minor() int {
	var major, minor int
	_, _ = fmt.Sscanf(s.version, "%d.%d", &major, &minor)
	return minor
}

func (s *Server) act(action string) error {
	switch action {
	case "InstanceStart":
		if s.state != notStarted {
			return fmt.Errorf("the microVM is already running")
		}
		if s.configured["/boot-source"] == nil {
			return fmt.Errorf("cannot start microvm without kernel configuration")
		}
		s.state = running
		return nil
	case "SendCtrlAltDel":
		if s.state != running {
			return fmt.Errorf("the requested operation is not supported before starting the microVM")
		}
		return nil
	default:
		return s.flush()
	}
}

// flush writes a line in the format of Firecracker's metrics, with the increments since the last
// line.
func (s *Server) flush() error {
	if s.state == notStarted {
		return fmt.Errorf("the requested operation is not supported before starting the microVM")
	}
	if s.metrics == nil {
		return fmt.Errorf("the metrics system was not initialized")
	}
	s.flushes++
	_, err := fmt.Fprintf(s.metrics, `{"utc_timestamp_ms":%d,"block":{"read_bytes":4096,"read_count":1,"write_bytes":0,"write_count":0},"net":{"rx_bytes_count":10,"tx_bytes_count":20},"vcpu":{"exit_io_in":1,"exit_io_out":2,"exit_mmio_read":3,"exit_mmio_write":4},"seccomp":{"num_faults":0}}`+"\n", s.flushes)
	return err
}

func (s *Server) become(state string) error {
	if s.state == notStarted {
		return fmt.Errorf("the requested operation is not supported before starting the microVM")
	}
	s.state = map[string]string{"Paused": paused, "Resumed": running}[state]
	return nil
}

func (s *Server) create(body map[string]any) error {
	if s.state != paused {
		return fmt.Errorf("cannot create snapshot: the microVM is %s, and must be paused", s.state)
	}
	for _, key := range []string{"mem_file_path", "snapshot_path"} {
		if err := os.WriteFile(body[key].(string), []byte("no guest's "+key), 0o644); err != nil {
			return fmt.Errorf("cannot create snapshot: %w", err)
		}
	}
	return nil
}

func (s *Server) load(body map[string]any) error {
	for path := range s.configured {
		if path != "/metrics" && path != "/logger" {
			return fmt.Errorf("loading a microVM snapshot not allowed after configuring boot-specific resources: %s", path)
		}
	}
	if s.state != notStarted {
		return fmt.Errorf("the requested operation is not supported after starting the microVM")
	}
	if _, overrides := body["network_overrides"]; overrides && s.minor() < 12 {
		return fmt.Errorf("unknown field `network_overrides`")
	}
	backend, hasBackend := body["mem_backend"].(map[string]any)
	memory, hasFile := body["mem_file_path"].(string)
	if hasBackend == hasFile {
		return fmt.Errorf("exactly one of mem_backend and mem_file_path must be given")
	}
	if hasBackend {
		memory = backend["backend_path"].(string)
	}
	for _, path := range []string{memory, body["snapshot_path"].(string)} {
		if err := opens(path, os.O_RDONLY); err != nil {
			return fmt.Errorf("load snapshot error: %w", err)
		}
	}
	s.state = paused
	if resume, _ := body["resume_vm"].(bool); resume {
		s.state = running
	}
	return nil
}
