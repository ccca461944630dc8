package config_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/internal/config"
)

type change struct {
	doc *admission.Document
	err error
}

func policyNamed(name string) []byte {
	return []byte("dependencies:\n  " + name + ": {unlimited: true}\n")
}

// watch runs a watcher until the test ends; changes come through the channel.
func watch(t *testing.T, path string, between func()) (*config.Watcher, <-chan change) {
	t.Helper()
	w := config.NewWatcher(path)
	if between != nil {
		between()
	}
	changes := make(chan change, 16)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- w.Run(ctx, func(doc *admission.Document, err error) { changes <- change{doc, err} })
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return w, changes
}

func next(t *testing.T, changes <-chan change) change {
	t.Helper()
	select {
	case c := <-changes:
		return c
	case <-time.After(10 * time.Second):
		require.FailNow(t, "the change was not noticed")
		return change{}
	}
}

func requireNamed(t *testing.T, name string, c change) {
	t.Helper()
	require.NoError(t, c.err)
	require.Contains(t, c.doc.Dependencies, name)
}

func replace(t *testing.T, path string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", data, 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

func TestWatchSeesEachWayOfChanging(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	require.NoError(t, os.WriteFile(path, policyNamed("zero"), 0o600))
	w, changes := watch(t, path, nil)

	w.Reload()
	requireNamed(t, "zero", next(t, changes)) // given again, and the watch is certainly there
	require.NoError(t, os.WriteFile(path, policyNamed("written"), 0o600))
	requireNamed(t, "written", next(t, changes))
	replace(t, path, policyNamed("renamed"))
	requireNamed(t, "renamed", next(t, changes))
	replace(t, path, policyNamed("again"))
	requireNamed(t, "again", next(t, changes))

	replace(t, path, []byte("dependencies: {x: {}}\n"))
	c := next(t, changes)
	require.Nil(t, c.doc)
	require.ErrorContains(t, c.err, "dependencies.x.limits")
	require.NoError(t, os.Remove(path))
	require.ErrorIs(t, next(t, changes).err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, policyNamed("back"), 0o600))
	requireNamed(t, "back", next(t, changes))

	// What does not change what the file says is nothing to tell: the next that is told is a real change.
	replace(t, path, policyNamed("back"))
	require.NoError(t, os.WriteFile(path+".other", []byte("x"), 0o600))
	require.NoError(t, os.Chmod(path, 0o640))
	w.Reload()
	requireNamed(t, "back", next(t, changes))
	replace(t, path, policyNamed("last"))
	requireNamed(t, "last", next(t, changes))
	require.Empty(t, changes)
}

// TestWatchKubernetes: a mounted ConfigMap is a link to a link to a directory, of which the middle one is swapped.
func TestWatchKubernetes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	version := func(name string) string {
		require.NoError(t, os.Mkdir(filepath.Join(dir, ".."+name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".."+name, "p.yaml"), policyNamed(name), 0o600))
		return ".." + name
	}
	data, path := filepath.Join(dir, "..data"), filepath.Join(dir, "p.yaml")
	require.NoError(t, os.Symlink(version("one"), data))
	require.NoError(t, os.Symlink("..data/p.yaml", path))
	w, changes := watch(t, path, nil)
	w.Reload()
	requireNamed(t, "one", next(t, changes))
	for i, name := range []string{"two", "three"} {
		require.NoError(t, os.Symlink(version(name), data+".tmp"))
		require.NoError(t, os.Rename(data+".tmp", data))
		require.NoError(t, os.RemoveAll(filepath.Join(dir, ".."+[]string{"one", "two"}[i])))
		requireNamed(t, name, next(t, changes))
	}
}

func TestWatchFollowsALink(t *testing.T) {
	t.Parallel()
	target := filepath.Join(t.TempDir(), "real.yaml")
	path := filepath.Join(t.TempDir(), "p.yaml")
	require.NoError(t, os.WriteFile(target, policyNamed("one"), 0o600))
	require.NoError(t, os.Symlink(target, path))
	w, changes := watch(t, path, nil)
	w.Reload()
	requireNamed(t, "one", next(t, changes))
	replace(t, target, policyNamed("two"))
	requireNamed(t, "two", next(t, changes))
}

// TestWatchMissesNothingAtItsStart: what changes between the caller's reading and the watch is told.
func TestWatchMissesNothingAtItsStart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	require.NoError(t, os.WriteFile(path, policyNamed("before"), 0o600))
	_, changes := watch(t, path, func() { replace(t, path, policyNamed("after")) })
	requireNamed(t, "after", next(t, changes))
}

func TestWatchNeedsTheDirectory(t *testing.T) {
	t.Parallel()
	w := config.NewWatcher(filepath.Join(t.TempDir(), "none", "p.yaml"))
	require.ErrorContains(t, w.Run(t.Context(), func(*admission.Document, error) {}), "watch policies")
}

func TestWatchInABusyDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "p.yaml")
	require.NoError(t, os.WriteFile(path, policyNamed("before"), 0o600))
	_, changes := watch(t, path, nil)
	replace(t, path, policyNamed("quiet")) // once this is told, the look at the start is over
	requireNamed(t, "quiet", next(t, changes))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.WriteFile(filepath.Join(dir, "noise"), []byte("x"), 0o600)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	replace(t, path, policyNamed("after"))
	requireNamed(t, "after", next(t, changes))
}
