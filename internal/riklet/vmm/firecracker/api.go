package firecracker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/internal/socket"
)

// The bodies of Firecracker's API, as far as this driver uses it, from the published
// src/firecracker/swagger/firecracker.yaml.
type (
	machineConfig struct {
		VCPUs     int   `json:"vcpu_count"`
		Mebibytes int64 `json:"mem_size_mib"`
	}
	bootSource struct {
		Kernel    string `json:"kernel_image_path"`
		Initramfs string `json:"initrd_path,omitempty"`
		Arguments string `json:"boot_args"`
	}
	drive struct {
		ID       string       `json:"drive_id"`
		Path     string       `json:"path_on_host"`
		Root     bool         `json:"is_root_device"`
		ReadOnly bool         `json:"is_read_only"`
		Limiter  *rateLimiter `json:"rate_limiter,omitempty"`
	}
	networkInterface struct {
		ID       string       `json:"iface_id"`
		Device   string       `json:"host_dev_name"`
		MAC      string       `json:"guest_mac"`
		Receive  *rateLimiter `json:"rx_rate_limiter,omitempty"`
		Transmit *rateLimiter `json:"tx_rate_limiter,omitempty"`
	}
	rateLimiter struct {
		Bandwidth  *tokenBucket `json:"bandwidth,omitempty"`
		Operations *tokenBucket `json:"ops,omitempty"`
	}
	tokenBucket struct {
		Size   int64 `json:"size"`
		Refill int64 `json:"refill_time"` // milliseconds
	}
	vsock struct {
		CID  uint32 `json:"guest_cid"`
		Path string `json:"uds_path"`
	}
	metricsPath struct {
		Path string `json:"metrics_path"`
	}
	action struct {
		Type string `json:"action_type"`
	}
	vmState struct {
		State string `json:"state"`
	}
	snapshotCreate struct {
		Type   string `json:"snapshot_type"`
		State  string `json:"snapshot_path"`
		Memory string `json:"mem_file_path"`
	}
	snapshotLoad struct {
		State    string            `json:"snapshot_path"`
		Memory   memoryBackend     `json:"mem_backend"`
		Resume   bool              `json:"resume_vm"`
		Networks []networkOverride `json:"network_overrides,omitempty"`
	}
	memoryBackend struct {
		Type string `json:"backend_type"`
		Path string `json:"backend_path"`
	}
	networkOverride struct {
		ID     string `json:"iface_id"`
		Device string `json:"host_dev_name"`
	}
	instanceInfo struct {
		State   string `json:"state"`
		Version string `json:"vmm_version"`
	}
)

const (
	// maxAnswer limits the memory that a compromised VMM can use here. An honest answer has some
	// hundred bytes.
	maxAnswer = 64 << 10
	maxFault  = 300
)

// Fault is Firecracker's error for a request that it refused.
type Fault struct {
	Request string
	Status  int
	Text    string
}

func (f *Fault) Error() string {
	return fmt.Sprintf("Firecracker refused %s (%d): %s", f.Request, f.Status, f.Text)
}

// api sends requests to one Firecracker. It keeps no connection.
type api struct {
	path string
	uid  uint32
}

// do sends a request and decodes the answer into out, unless that is nil.
func (a api) do(ctx context.Context, method, path string, body, out any) error {
	var content io.Reader = http.NoBody
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(b)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, content)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	status, answer, err := a.exchange(ctx, request)
	if err != nil {
		return a.failure(ctx, method+" "+path, err)
	}
	return check(method+" "+path, status, answer, out)
}

// exchange sends a request on a new connection. It does not use net/http's client, because that
// would read ahead, write to the log, follow redirects and retry.
func (a api) exchange(ctx context.Context, request *http.Request) (int, []byte, error) {
	conn, err := socket.Connect(ctx, a.path, a.uid)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	request.Close = true
	if err := request.Write(conn); err != nil {
		return 0, nil, err
	}
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxAnswer)), request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

func check(request string, status int, answer []byte, out any) error {
	switch {
	case status == http.StatusNoContent && out == nil:
		return nil
	case status == http.StatusOK && out != nil:
		if err := json.Unmarshal(answer, out); err != nil {
			return fmt.Errorf("Firecracker sent an invalid answer to %s: %w", request, err) //nolint:staticcheck // a name
		}
		return nil
	}
	var fault struct {
		Message string `json:"fault_message"`
	}
	if json.Unmarshal(answer, &fault) != nil || fault.Message == "" {
		fault.Message = string(answer)
	}
	return &Fault{Request: request, Status: status, Text: fmt.Sprintf("%.*q", maxFault, fault.Message)}
}

// failure converts the error of a request without an answer.
func (a api) failure(ctx context.Context, request string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", request, context.Cause(ctx))
	}
	if err = socket.Gone(err); errors.Is(err, socket.ErrGone) {
		return fmt.Errorf("%w: %w", vmm.ErrGone, err)
	}
	return fmt.Errorf("%s: %w", request, err)
}

func (a api) put(ctx context.Context, path string, body any) error {
	return a.do(ctx, http.MethodPut, path, body, nil)
}

func (a api) info(ctx context.Context) (instanceInfo, error) {
	var i instanceInfo
	err := a.do(ctx, http.MethodGet, "/", nil, &i)
	return i, err
}

// perSecond returns a bucket that refills once a second. For no limit it returns nil.
func perSecond(n int64) *tokenBucket {
	if n <= 0 {
		return nil
	}
	return &tokenBucket{Size: n, Refill: time.Second.Milliseconds()}
}

func limiter(bytesPerSecond, operationsPerSecond int64) *rateLimiter {
	if bytesPerSecond <= 0 && operationsPerSecond <= 0 {
		return nil
	}
	return &rateLimiter{Bandwidth: perSecond(bytesPerSecond), Operations: perSecond(operationsPerSecond)}
}
