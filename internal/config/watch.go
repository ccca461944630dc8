package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluicehq/sluice/admission"
)

// Editors write in several steps, so a file is read only when its directory was quiet for a moment. In a directory that
// is never quiet it is read all the same, after so many disturbances.
const (
	settle          = 100 * time.Millisecond
	maxDisturbances = 10
)

// Watcher reads a policy file again whenever it changes.
type Watcher struct {
	path   string
	checks []Check
	reload chan struct{}
	last   string
}

// NewWatcher watches the policy file at the path, read as LoadPolicies does with the checks. Make it before the file is
// read for the first time: Run reports what has changed since.
func NewWatcher(path string, checks ...Check) *Watcher {
	w := &Watcher{path: path, checks: checks, reload: make(chan struct{}, 1)}
	w.last = w.content()
	return w
}

// Reload has the file read again although nothing was noticed: for SIGHUP. It never blocks.
func (w *Watcher) Reload() {
	select {
	case w.reload <- struct{}{}:
	default: // one is waiting already and will see the present file
	}
}

// Run calls onChange with each new content, one call at a time, until ctx is done; it then returns nil. A file that is
// broken or gone is given as an error, and what was read before stays in force; a file that reads as before is given
// again only after Reload.
//
// What is watched is the directory, because editors and Kubernetes replace files rather than write them. The latter
// swaps a symbolic link beside the file (..data), so that any event in the directory may mean the file, and what is
// compared is what it says.
func (w *Watcher) Run(ctx context.Context, onChange func(*admission.Document, error)) error {
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch policies: %w", err)
	}
	defer func() { _ = fs.Close() }()
	if err := fs.Add(filepath.Dir(w.path)); err != nil {
		return fmt.Errorf("watch policies: %w", err)
	}
	w.follow(fs)
	quiet := time.NewTimer(0) // what changed before there was a watch
	defer quiet.Stop()
	disturbed := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.reload:
			w.last = w.content()
			onChange(LoadPolicies(w.path, w.checks...))
		case <-quiet.C:
			disturbed = 0
			w.follow(fs)
			if now := w.content(); now != w.last {
				w.last = now
				onChange(LoadPolicies(w.path, w.checks...))
			}
		case _, ok := <-fs.Events:
			if !ok {
				return nil
			}
			if disturbed++; disturbed <= maxDisturbances {
				quiet.Reset(settle)
			}
		case err, ok := <-fs.Errors:
			if !ok {
				return nil
			}
			onChange(nil, fmt.Errorf("watch policies: %w", err))
			quiet.Reset(settle) // events may have been lost
		}
	}
}

// follow also watches the directory that the file really lies in, where the path is a link. It may have gone already;
// then its link changes, which is seen.
func (w *Watcher) follow(fs *fsnotify.Watcher) {
	if target, err := filepath.EvalSymlinks(w.path); err == nil {
		_ = fs.Add(filepath.Dir(target))
	}
}

// content tells one content of the file from another.
func (w *Watcher) content() string {
	data, err := os.ReadFile(w.path)
	if err != nil {
		return "unreadable"
	}
	return "read " + string(data)
}
