package apitest

import (
	"encoding/json"
	"fmt"
	"slices"
)

// schema lists the fields that an object of the API may and must have. The tables follow the
// published src/firecracker/swagger/firecracker.yaml (1.12), as far as the driver uses it.
type schema map[string]field

type field struct {
	kind     kind
	required bool
	// min and max limit numbers. A max of 0 means no limit.
	min, max int64
	enum     []string
	object   schema // of an object, or of a list's entries
}

type kind int

const (
	text kind = iota
	number
	boolean
	object
	list
)

var tokenBucket = schema{
	"size": {kind: number, required: true}, "refill_time": {kind: number, required: true}, "one_time_burst": {kind: number},
}

var rateLimiter = schema{"bandwidth": {kind: object, object: tokenBucket}, "ops": {kind: object, object: tokenBucket}}

var schemas = map[string]schema{
	"PUT /machine-config": {
		"vcpu_count": {kind: number, required: true, min: 1, max: 32}, "mem_size_mib": {kind: number, required: true, min: 1},
		"smt": {kind: boolean}, "track_dirty_pages": {kind: boolean}, "huge_pages": {kind: text, enum: []string{"None", "2M"}},
		"cpu_template": {kind: text, enum: []string{"C3", "T2", "T2S", "T2CL", "T2A", "V1N1", "None"}},
	},
	"PUT /boot-source": {"kernel_image_path": {kind: text, required: true}, "initrd_path": {kind: text}, "boot_args": {kind: text}},
	"PUT /drives/": {
		"drive_id": {kind: text, required: true}, "is_root_device": {kind: boolean, required: true}, "is_read_only": {kind: boolean},
		"path_on_host": {kind: text, required: true}, "partuuid": {kind: text}, "rate_limiter": {kind: object, object: rateLimiter},
		"cache_type": {kind: text, enum: []string{"Unsafe", "Writeback"}}, "io_engine": {kind: text, enum: []string{"Sync", "Async"}},
	},
	"PUT /network-interfaces/": {
		"iface_id": {kind: text, required: true}, "host_dev_name": {kind: text, required: true}, "guest_mac": {kind: text},
		"rx_rate_limiter": {kind: object, object: rateLimiter}, "tx_rate_limiter": {kind: object, object: rateLimiter},
	},
	"PUT /vsock":   {"guest_cid": {kind: number, required: true, min: 3}, "uds_path": {kind: text, required: true}, "vsock_id": {kind: text}},
	"PUT /entropy": {"rate_limiter": {kind: object, object: rateLimiter}},
	"PUT /metrics": {"metrics_path": {kind: text, required: true}},
	"PUT /actions": {"action_type": {kind: text, required: true, enum: []string{"FlushMetrics", "InstanceStart", "SendCtrlAltDel"}}},
	"PATCH /vm":    {"state": {kind: text, required: true, enum: []string{"Paused", "Resumed"}}},
	"PUT /snapshot/create": {
		"mem_file_path": {kind: text, required: true}, "snapshot_path": {kind: text, required: true},
		"snapshot_type": {kind: text, enum: []string{"Full", "Diff"}},
	},
	"PUT /snapshot/load": {
		"snapshot_path": {kind: text, required: true}, "mem_file_path": {kind: text}, "resume_vm": {kind: boolean},
		"enable_diff_snapshots": {kind: boolean}, "track_dirty_pages": {kind: boolean},
		"mem_backend": {kind: object, object: schema{
			"backend_type": {kind: text, required: true, enum: []string{"File", "Uffd"}}, "backend_path": {kind: text, required: true},
		}},
		"network_overrides": {kind: list, object: schema{"iface_id": {kind: text, required: true}, "host_dev_name": {kind: text, required: true}}},
	},
}

// check returns the first difference between an object and its schema.
func (s schema) check(where string, value map[string]any) error {
	for name := range value {
		if _, ok := s[name]; !ok {
			return fmt.Errorf("unknown field `%s%s`", where, name)
		}
	}
	for name, f := range s {
		v, ok := value[name]
		if !ok {
			if f.required {
				return fmt.Errorf("missing field `%s%s`", where, name)
			}
			continue
		}
		if err := f.check(where+name, v); err != nil {
			return err
		}
	}
	return nil
}

func (f field) check(name string, value any) error {
	switch v := value.(type) {
	case string:
		if f.kind == text && (f.enum == nil || slices.Contains(f.enum, v)) {
			return nil
		}
	case bool:
		if f.kind == boolean {
			return nil
		}
	case json.Number:
		n, err := v.Int64()
		if f.kind == number && err == nil && n >= f.min && (f.max == 0 || n <= f.max) {
			return nil
		}
	case map[string]any:
		if f.kind == object {
			return f.object.check(name+".", v)
		}
	case []any:
		return f.checkList(name, v)
	}
	return fmt.Errorf("invalid value %v for `%s`", value, name)
}

func (f field) checkList(name string, values []any) error {
	if f.kind != list {
		return fmt.Errorf("invalid list for `%s`", name)
	}
	for _, v := range values {
		o, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("invalid entry %v in `%s`", v, name)
		}
		if err := f.object.check(name+".", o); err != nil {
			return err
		}
	}
	return nil
}
