package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/sluicehq/sluice/admission"
)

// Bounds of a policy file. A file is trusted to mean well, not to be small by accident.
const (
	maxFile  = 4 << 20 // bytes
	maxDepth = 64      // of nested lists and maps; a policy needs 7
	maxShown = 1000    // mistakes; nobody mends more at once
)

// PolicyProblem is one mistake in a policy file.
type PolicyProblem struct {
	Line, Column int            // from 1; 0 where the file as a whole is meant
	Path         admission.Path // what the line configures, dependencies.shopify.limits[0].refill; "" unless it is known
	Message      string         // what is wrong and what is allowed
}

// PolicyError holds every mistake of a policy file, in the order of their lines.
type PolicyError struct {
	File     string
	Problems []PolicyProblem
}

// Error lists the mistakes one a line, each as file:line:column, the way compilers do.
func (e *PolicyError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		var b strings.Builder
		b.WriteString(e.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
		}
		if p.Path != "" {
			b.WriteString(": " + string(p.Path))
		}
		lines[i] = b.String() + ": " + p.Message
	}
	return strings.Join(lines, "\n")
}

// Check finds what a program cannot do of a document that is right in itself.
type Check func(*admission.Document) []admission.Problem

// LoadPolicies reads a policy file. Its mistakes, and what the checks find in a file without mistakes, come as one
// *PolicyError.
func LoadPolicies(path string, checks ...Check) (*admission.Document, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	return ParsePolicies(path, data, checks...)
}

// ParsePolicies reads the content of a policy file, YAML or JSON. The name only serves to report mistakes, which come
// as one *PolicyError: unknown and repeated fields, wrong types, all that admission.Validate finds, and if nothing was
// found until then, what the checks find.
func ParsePolicies(filename string, data []byte, checks ...Check) (*admission.Document, error) {
	d := &decoder{places: map[admission.Path]*token.Position{}, failed: map[admission.Path]bool{}, budget: maxAliased}
	doc := &admission.Document{}
	if d.document(data, doc) {
		for _, p := range admission.Validate(doc) {
			if !d.broken(p.Path) {
				d.reportAt(d.place(p.Path), p.Path, "%s", p.Message)
			}
		}
	}
	if len(d.problems) == 0 {
		for _, check := range checks {
			for _, p := range check(doc) {
				d.reportAt(d.place(p.Path), p.Path, "%s", p.Message)
			}
		}
	}
	if len(d.problems) == 0 {
		return doc, nil
	}
	slices.SortStableFunc(d.problems, func(a, b PolicyProblem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if more := len(d.problems) - maxShown; more > 0 {
		last := d.problems[maxShown-1]
		d.problems = append(d.problems[:maxShown:maxShown], PolicyProblem{
			Line: last.Line, Column: last.Column, Message: fmt.Sprintf("and %d more mistakes from here on", more),
		})
	}
	return nil, &PolicyError{File: filename, Problems: d.problems}
}

// document decodes the file and reports whether it was read far enough to be judged.
func (d *decoder) document(data []byte, doc *admission.Document) bool {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if len(data) > maxFile {
		d.reportAt(nil, "", "the file is larger than %d bytes", maxFile)
		return false
	}
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		line := 1 + bytes.Count(data[:firstBad(data)], []byte("\n"))
		d.reportAt(&token.Position{Line: line, Column: 1}, "", "the line is not UTF-8 text")
		return false
	}
	tokens := lexer.Tokenize(string(data))
	if t := tooDeep(tokens); t != nil {
		d.reportAt(t.Position, "", "lists and maps are nested more than %d deep", maxDepth)
		return false
	}
	// Repeated keys are let pass here and found by the decoder, which does not stop at the first.
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		if bad, ok := errors.AsType[*yaml.SyntaxError](err); ok && bad.Token != nil {
			d.reportAt(bad.Token.Position, "", "%s", bad.Message)
		} else {
			d.reportAt(nil, "", "%s", err.Error())
		}
		return false
	}
	if len(file.Docs) > 1 {
		for _, more := range file.Docs[1:] {
			if more.Body != nil {
				d.reportAt(position(more.Body), "", "a second document begins; a policy file is one")
				return false
			}
		}
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		d.reportAt(nil, "", "the file is empty; it needs dependencies")
		return false
	}
	d.root(file.Docs[0].Body, doc)
	return d.budget >= 0
}

func firstBad(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == 0 || (r == utf8.RuneError && size == 1) {
			return i
		}
		i += size
	}
	return len(data)
}

// tooDeep finds the token with which nesting passes maxDepth. The parser is recursive, so it must not see such a file.
// Nesting by indentation costs so many bytes that the size of the file bounds it.
func tooDeep(tokens token.Tokens) *token.Token {
	flow, inLine, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			inLine, line = 0, t.Position.Line
		}
		switch t.Type { //nolint:exhaustive // the others do not nest
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.SequenceEntryType, token.MappingKeyType, token.TagType, token.AnchorType:
			inLine++
		}
		// A flow list may well have hundreds of tagged or anchored items in a line; they do not nest.
		if flow > maxDepth || (flow == 0 && inLine > maxDepth) {
			return t
		}
	}
	return nil
}
