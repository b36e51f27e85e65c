package audit

import (
	"os"
	"sync"

	"gopkg.in/natefinch/lumberjack.v2"
)

// file is a file that is rotated by size. If it is moved or deleted, such as by logrotate, the
// next entry goes to a new file of that name.
type file struct {
	path string

	mu  sync.Mutex
	out lumberjack.Logger
	// seen identifies the open file. It is nil before the first entry.
	seen os.FileInfo
}

func newFile(path string, megabytes, backups int) *file {
	// lumberjack creates its files with mode 0600.
	return &file{path: path, out: lumberjack.Logger{Filename: path, MaxSize: megabytes, MaxBackups: backups}}
}

// Write implements io.Writer.
func (f *file) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := os.Stat(f.path)
	if f.seen != nil && err == nil && os.SameFile(there, f.seen) {
		return f.out.Write(p)
	}
	if f.seen != nil {
		// The file was rotated or is gone. The next write opens a new one.
		if err := f.out.Close(); err != nil {
			return 0, err
		}
	}
	n, err := f.out.Write(p)
	if err != nil {
		return n, err
	}
	f.seen, err = os.Stat(f.path)
	return n, err
}

// Close closes the file. A later Write opens it again.
func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = nil
	return f.out.Close()
}
