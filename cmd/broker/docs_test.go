package main

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/internal/config"
	"github.com/sluicehq/sluice/internal/telemetry"
)

// TestDocs_policiesAreRight: what a reader copies from the documentation is a policy file without mistakes.
func TestDocs_policiesAreRight(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"README.md", "docs/policies.md"} {
		text, err := os.ReadFile("../../" + name)
		require.NoError(t, err)
		blocks := strings.Split(string(text), "```yaml\n")[1:]
		require.NotEmpty(t, blocks, name)
		for _, block := range blocks {
			content, _, _ := strings.Cut(block, "```")
			doc, err := config.ParsePolicies(name, []byte(content), offered)
			require.NoError(t, err, content)
			parts, err := unenforced(doc)
			require.NoError(t, err)
			require.Empty(t, parts, "no example promises what is not in force")
		}
	}
}

// TestDocs_everyFieldIsDescribed: docs/policies.md names each field that a policy file may have.
func TestDocs_everyFieldIsDescribed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/policies.md")
	require.NoError(t, err)
	names := map[string]bool{}
	fields(reflect.TypeFor[admission.Document](), names)
	require.Greater(t, len(names), 50)
	for name := range names {
		require.True(t, strings.Contains(string(text), "`"+name+"`"), name) //nolint:testifylint // the text is too long to be shown
	}
}

// fields collects the names of a document's fields.
func fields(t reflect.Type, names map[string]bool) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		fields(t.Elem(), names)
	case reflect.Struct:
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if yaml := f.Tag.Get("yaml"); yaml != "" {
				name = yaml
			}
			if name == "" { // no document: a rate
				continue
			}
			names[name] = true
			fields(f.Type, names)
		}
	}
}

// TestDocs_everyMetricIsDescribed: docs/metrics.md names each metric that there is, and no other.
func TestDocs_everyMetricIsDescribed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	registry := prometheus.NewPedanticRegistry()
	telemetry.New(registry, telemetry.Options{})
	described := make(chan *prometheus.Desc, 100)
	registry.Describe(described)
	close(described)
	var want []string
	for d := range described {
		_, name, _ := strings.Cut(d.String(), `fqName: "`)
		name, _, _ = strings.Cut(name, `"`)
		want = append(want, name)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "| `sluice_"); ok {
			name, _, _ = strings.Cut(name, "`")
			got = append(got, "sluice_"+name)
		}
	}
	require.ElementsMatch(t, want, got)
}
