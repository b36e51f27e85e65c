package audit

import (
	"os"
	"sync"

	"gopkg.in/natefinch/lumberjack.v2"
)

// file is a file that is rotated by size. When somebody moves or deletes it, as logrotate
// does, the next entry goes to a new file of the name.
type file struct {
	path string

	mu  sync.Mutex
	out lumberjack.Logger
	// seen is the file that is open, nil before the first entry.
	seen os.FileInfo
}

func newFile(path string, megabytes, backups int) *file {
	// lumberjack makes its files with mode 0600.
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
		// It was rotated, or is not there any more. What comes next opens it.
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
