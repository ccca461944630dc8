package sluice_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTreeControl shows that the rules catch what they are for: a TestTree that
// passes would say nothing otherwise.
func TestTreeControl(t *testing.T) {
	t.Parallel()
	const ours = module + "/"
	tests := []struct {
		file, imports string
		want          string // part of the one report; empty: nothing is wrong
	}{
		{"bucket/a.go", ours + "queue", "bucket may only import []"},
		{"bucket/sub/a.go", ours + "admission", "bucket may only import []"},
		{"bucket/a.go", ours + "bucket/sub", ""},
		{"queue/a.go", ours + "bucket", ""},
		{"queue/a.go", ours + "admission", "queue may only import"},
		{"admission/a.go", ours + "queue", ""},
		{"admission/a.go", ours + "internal/config", "admission may only import"},
		{"clientlib/a.go", ours + "internal/config", ""},
		{"clientlib/a.go", ours + "internal/drain", "clientlib may only import"},
		{"internal/drain/a.go", ours + "internal/httpapi", "internal/drain may only import"},
		{"internal/httpapi/a.go", ours + "bucket", ""},
		{"internal/httpapi/a.go", ours + "internal/drain", "internal/httpapi may only import"},
		{"internal/config/a.go", ours + "queue", "internal/config may only import"},
		{"internal/telemetry/a.go", ours + "admission", ""},
		{"internal/telemetry/a.go", ours + "queue", "internal/telemetry may only import"},
		{"internal/partner/a.go", ours + "bucket", "internal/partner may only import []"},
		{"cmd/broker/a.go", ours + "internal/drain", ""},
		{"examples/a/a.go", ours + "clientlib", ""},
		{"examples/a/a.go", ours + "bucket", "examples may only import"},
		{"util/a.go", "fmt", "in no part of the tree"},
		{"bucketful/a.go", "fmt", "in no part of the tree"},
		{"cmd/broker/a.go", ours + "util", "cmd may only import"},

		{"internal/drain/a.go", "github.com/hibiken/asynq", ""},
		{"queue/a.go", "github.com/hibiken/asynq", "which only [internal/drain] may"},
		{"cmd/broker/a.go", "github.com/hibiken/asynq", "which only [internal/drain] may"},
		{"clientlib/a.go", "github.com/gorilla/mux", "which only [internal/httpapi] may"},
		{"clientlib/a_test.go", "github.com/gorilla/mux", ""},
		{"cmd/broker/a.go", "github.com/alicebob/miniredis/v2", "which only [internal/embedded] may"},
		{"queue/a_test.go", "github.com/alicebob/miniredis/v2", ""},

		{"bucket/a_test.go", "github.com/stretchr/testify/require", ""},
		{"internal/redistest/a.go", "github.com/stretchr/testify/require", ""},
		{"bucket/a.go", "github.com/stretchr/testify/require", "which only [internal/redistest"},
		{"bucket/a_test.go", "github.com/stretchr/testify/assert", "which only [] may"},
		{"bucket/a_test.go", "github.com/stretchr/testify/mock", "which only [] may"},
		{"bucket/a.go", "testing", "which only [internal/redistest"},
		{"bucket/a.go", ours + "internal/redistest", "which only [internal/redistest"},
		{"bucket/buckettest/a.go", ours + "internal/redistest", ""},
		{"bucket/a_test.go", ours + "internal/redistest", ""},
	}
	for _, tt := range tests {
		t.Run(tt.file+" "+strings.TrimPrefix(tt.imports, ours), func(t *testing.T) {
			t.Parallel()
			got := check(source{name: tt.file, imports: []string{"fmt", tt.imports}, lines: maxLines})
			if tt.want == "" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Contains(t, got[0], tt.want)
			require.True(t, strings.HasPrefix(got[0], tt.file+": "))
		})
	}
	for _, name := range []string{"bucket/a.go", "bucket/a_test.go", "a_test.go"} {
		require.Len(t, check(source{name: name, lines: maxLines + 1}), 1, name)
	}
}

// TestSourcesControl does the same for what is read: a file on disk that offends
// is found, and what belongs to others is not.
func TestSourcesControl(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, text string) {
		name = filepath.Join(root, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	offence := "package x\n\nimport (\n\t\"fmt\"\n\t_ \"" + module + "/queue\"\n)\n\nfunc F() {\n\tfmt.Println()\n}\n"
	write("go.mod", "module "+module+"\n")
	write("bucket/offends.go", offence)
	write("bucket/long_test.go", "package x\n"+strings.Repeat("\n", maxLines))
	write("bucket/testdata/ignored.go", offence)
	write(".hidden/ignored.go", offence)
	write("bench/go.mod", "module bench\n")
	write("bench/deep/ignored.go", offence)
	write("README.md", "no Go\n")

	var names, wrong []string
	for _, s := range sources(t, root) {
		names = append(names, s.name)
		wrong = append(wrong, check(s)...)
	}
	require.ElementsMatch(t, []string{"bucket/offends.go", "bucket/long_test.go"}, names)
	require.Len(t, wrong, 2)
}
