package guestinit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
)

// Kernel is the Machine of a VM. Only process 1 may use it.
type Kernel struct {
	mu         sync.Mutex
	configured bool
	hosts      string
	resolv     string
	addresses  []string
	images     map[string]string // device to mount point
	containers map[string]*container
	runs       int
	reaper     *reaper
}

// newKernel prepares what is independent of the configuration.
func newKernel() (*Kernel, error) {
	if err := controlCgroups(); err != nil {
		return nil, err
	}
	k := &Kernel{images: map[string]string{}, containers: map[string]*container{}, reaper: newReaper()}
	for _, dir := range []string{imageDir, volumeDir, scratchDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// Configure applies the node's configuration. Start and Dial fail before that.
func (k *Kernel) Configure(c guest.Config) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.configured {
		return errors.New("this guest is already configured")
	}
	// Set the clock first, because files that are written later carry the time.
	if err := errors.Join(setClock(c.Time), addEntropy(c.Entropy)); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
		return fmt.Errorf("setting the host name %q: %w", c.Hostname, err)
	}
	if err := k.network(c.Interfaces); err != nil {
		return err
	}
	k.hosts, k.resolv = c.Hosts, c.Resolv
	if err := mountScratch(c.Scratch); err != nil {
		return err
	}
	for _, v := range c.Volumes {
		if err := makeVolume(v); err != nil {
			return fmt.Errorf("creating the volume %q: %w", v.Name, err)
		}
	}
	k.configured = true
	return nil
}

// network brings up the loopback and the interfaces, and saves the addresses.
func (k *Kernel) network(interfaces []guest.Interface) error {
	if err := configureNetwork(interfaces); err != nil {
		return err
	}
	k.addresses = []string{"127.0.0.1", "::1"}
	for _, i := range interfaces {
		k.addresses = append(k.addresses, i.Address.Addr().String())
	}
	return nil
}

// Thaw sets the time, the entropy and the identity of a machine that was resumed or copied.
func (k *Kernel) Thaw(i guest.Identity) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := errors.Join(setClock(i.Time), addEntropy(i.Entropy))
	if i.Hostname != "" {
		err = errors.Join(err, unix.Sethostname([]byte(i.Hostname)))
	}
	if len(i.Interfaces) > 0 {
		err = errors.Join(err, k.network(i.Interfaces))
	}
	if i.Hosts != "" || i.Resolv != "" {
		k.hosts, k.resolv = i.Hosts, i.Resolv
		for _, c := range k.containers {
			err = errors.Join(err, c.writeNames(k.hosts, k.resolv))
		}
	}
	return err
}

// setClock sets the time of day. The zero time leaves it unchanged.
func setClock(t time.Time) error {
	if t.IsZero() {
		return nil
	}
	tv := unix.NsecToTimeval(t.UnixNano())
	if err := unix.Settimeofday(&tv); err != nil {
		return fmt.Errorf("setting the clock: %w", err)
	}
	return nil
}

// addEntropy adds random bytes to the kernel's pool and makes it reseed at once.
func addEntropy(seed []byte) error {
	if len(seed) == 0 {
		return nil
	}
	if len(seed) > maxEntropy {
		seed = seed[:maxEntropy]
	}
	f, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	pool := struct { // struct rand_pool_info of linux/random.h
		bits, size int32
		data       [maxEntropy]byte
	}{bits: int32(len(seed)) * 8, size: int32(len(seed))}
	copy(pool.data[:], seed)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&pool))); errno != 0 {
		return fmt.Errorf("adding entropy: %w", errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDRESEEDCRNG, 0); errno != 0 {
		return fmt.Errorf("reseeding: %w", errno)
	}
	return nil
}

const maxEntropy = 512

// Files replaces the files of a volume.
func (k *Kernel) Files(v guest.Volume) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	dir, err := volumePath(v.Name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("no volume %q", v.Name)
	}
	return publish(dir, v.Files)
}

// Dial tries the loopback, then the addresses, because a server may listen on only one of them.
func (k *Kernel) Dial(ctx context.Context, port int32) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("no port %d", port)
	}
	k.mu.Lock()
	addresses := append([]string(nil), k.addresses...)
	k.mu.Unlock()
	var d net.Dialer
	err := errors.New("this guest is not configured yet")
	for i, address := range addresses {
		conn, failed := d.DialContext(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(int(port))))
		if failed == nil {
			return conn, nil
		}
		if i == 0 || ctx.Err() != nil {
			err = failed
		}
	}
	return nil, err
}

// name matches valid names of containers and volumes. Names become parts of paths.
var name = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?$`)

func validName(what, s string) error {
	if !name.MatchString(s) {
		return fmt.Errorf("%q is not a valid name of a %s", s, what)
	}
	return nil
}

// PowerOff ends the machine.
func (k *Kernel) PowerOff() { powerOff() }

// Stop kills all processes and writes the disks.
func (k *Kernel) Stop() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	killCgroup(containersCgroup)
	unix.Sync()
	// A file system that cannot be unmounted is at least consistent if it is read-only.
	err := unix.Mount("", scratchDir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EBUSY) {
		err = nil // in memory, or still used by dying processes: it is synced in any case
	}
	unix.Sync()
	return err
}

// Usage reads the cgroups.
func (k *Kernel) Usage() (guest.Usage, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	u := guest.Usage{Containers: map[string]guest.Memory{}}
	var err error
	if u.CPUNanos, err = cpuNanos(cgroupRoot); err != nil {
		return u, err
	}
	if u.MemoryBytes, err = machineMemory(); err != nil {
		return u, err
	}
	for n, c := range k.containers {
		m := guest.Memory{}
		if m.CPUNanos, err = cpuNanos(c.cgroup); err != nil {
			return u, err
		}
		if m.MemoryBytes, err = readNumber(filepath.Join(c.cgroup, "memory.current")); err != nil {
			return u, err
		}
		u.Containers[n] = m
	}
	return u, nil
}
