// Package sluice_test keeps the shape of the repository: who may import whom,
// and how long a file may be. docs/architecture.md explains the table.
package sluice_test

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/sluicehq/sluice"

// anything stands for every package of ours.
const anything = "*"

// layers says which of our packages each part of the tree may import; a part
// is a folder with everything below it, and may always import itself. What is
// in no part fails the test, so that new folders are placed on purpose.
var layers = map[string][]string{
	"bucket":             {},
	"queue":              {"bucket"},
	"admission":          {"queue", "bucket"},
	"clientlib":          {"admission", "queue", "bucket", "internal/config"},
	"internal/config":    {"admission", "bucket"},
	"internal/drain":     {"admission", "queue"},
	"internal/httpapi":   {"admission", "queue", "bucket", "internal/webui", "internal/telemetry", "api"},
	"internal/webui":     {"admission", "queue", "bucket"},
	"internal/telemetry": {"admission", "bucket"},
	"internal/embedded":  {},
	"internal/partner":   {},
	"internal/redistest": {},
	"api":                {},
	"cmd":                {anything},
	"examples":           {"clientlib"},
}

// homes names the only parts that may know a library. Tests may use what they
// like, except where a library's name says otherwise.
var homes = map[string][]string{
	"github.com/hibiken/asynq":                {"internal/drain"},
	"github.com/gorilla/mux":                  {"internal/httpapi"},
	"github.com/alicebob/miniredis":           {"internal/embedded"},
	"github.com/stretchr/testify":             testSupport,
	"pgregory.net/rapid":                      testSupport,
	"go.uber.org/goleak":                      testSupport,
	"testing":                                 testSupport,
	module + "/internal/redistest":            testSupport,
	module + "/bucket/buckettest":             testSupport,
	"github.com/stretchr/testify/assert":      {}, // require only
	"github.com/stretchr/testify/mock":        {}, // no mocks
	"gopkg.in/yaml.v3":                        {}, // goccy/go-yaml, strict
	"github.com/prometheus/client_golang/api": {}, // a client of the server, not ours
}

// testSupport are packages that are no tests but are made for tests.
var testSupport = []string{"internal/redistest", "bucket/buckettest"}

// nowhere are those of homes that tests may not use either.
var nowhere = []string{"github.com/stretchr/testify/assert", "github.com/stretchr/testify/mock", "gopkg.in/yaml.v3"}

// maxLines is the length of the longest file.
const maxLines = 500

// source is what the rules look at in a Go file.
type source struct {
	name    string // slash-separated, from the root
	imports []string
	lines   int
}

func (s source) isTest() bool { return strings.HasSuffix(s.name, "_test.go") }

// check returns what is wrong with a file.
func check(s source) []string {
	var wrong []string
	report := func(format string, args ...any) {
		wrong = append(wrong, s.name+": "+fmt.Sprintf(format, args...))
	}
	if s.lines > maxLines {
		report("%d lines, at most %d are allowed", s.lines, maxLines)
	}
	dir := path.Dir(s.name)
	part, known := partOf(dir)
	if !known && dir != "." {
		report("%s is in no part of the tree: give it a place in layers", dir)
		return wrong
	}
	for _, imported := range s.imports {
		if library, where := homeOf(imported); library != "" {
			allowed := slices.ContainsFunc(where, func(home string) bool { return within(dir, home) })
			if !allowed && (!s.isTest() || slices.Contains(nowhere, library)) {
				report("imports %s, which only %v may", imported, where)
				continue
			}
		}
		// Tests may put together what the layers keep apart.
		if ours, ok := strings.CutPrefix(imported, module+"/"); ok && !s.isTest() && !mayImport(dir, part, ours) {
			report("imports %s: %s may only import %v", imported, part, layers[part])
		}
	}
	return wrong
}

func mayImport(dir, part, ours string) bool {
	target, known := partOf(ours)
	if !known {
		return false // its own files are reported, too
	}
	if slices.Contains(testSupport, dir) && slices.Contains(testSupport, ours) {
		return true
	}
	return target == part || slices.Contains(layers[part], target) || slices.Contains(layers[part], anything)
}

// partOf returns the part to which a folder belongs.
func partOf(dir string) (string, bool) {
	for part := range layers {
		if within(dir, part) {
			return part, true
		}
	}
	return "", false
}

// homeOf returns the most special entry of homes for an import.
func homeOf(imported string) (library string, where []string) {
	for l, w := range homes {
		if len(l) > len(library) && within(imported, l) {
			library, where = l, w
		}
	}
	return library, where
}

func within(name, folder string) bool {
	return name == folder || strings.HasPrefix(name, folder+"/")
}

// sources reads the Go files of this module.
func sources(t *testing.T, root string) []source {
	t.Helper()
	var found []source
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != root && foreign(name, entry.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		s, err := parse(filepath.ToSlash(rel), text)
		found = append(found, s)
		return err
	})
	require.NoError(t, err)
	return found
}

// foreign says whether a folder is none of this module's: the go command skips
// it, or it is a module of its own.
func foreign(name, base string) bool {
	if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || slices.Contains([]string{"testdata", "vendor", "node_modules"}, base) {
		return true
	}
	_, err := os.Stat(filepath.Join(name, "go.mod"))
	return err == nil
}

func parse(name string, text []byte) (source, error) {
	s := source{name: name, lines: bytes.Count(text, []byte("\n"))}
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
	if err != nil {
		return s, err
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return s, err
		}
		s.imports = append(s.imports, imported)
	}
	return s, nil
}

func TestTree(t *testing.T) {
	t.Parallel()
	found := sources(t, ".")
	require.NotEmpty(t, found)
	var wrong []string
	for _, s := range found {
		wrong = append(wrong, check(s)...)
	}
	require.Empty(t, wrong, "\n%s", strings.Join(wrong, "\n"))
}

// TestLayersHaveNoCycle keeps the table itself honest.
func TestLayersHaveNoCycle(t *testing.T) {
	t.Parallel()
	var visit func(part string, above []string)
	visit = func(part string, above []string) {
		require.NotContains(t, above, part)
		for _, below := range layers[part] {
			if below != anything {
				require.Contains(t, layers, below)
				visit(below, append(slices.Clone(above), part))
			}
		}
	}
	for part := range layers {
		visit(part, nil)
	}
}
