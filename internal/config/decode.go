package config

import (
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/sluicehq/sluice/admission"
)

// maxAliased bounds how many nodes aliases may stand for, all together: a few lines of them can mean billions.
const maxAliased = 100_000

// decoder puts a YAML tree into Go values. The library's own decoder stops at the first mistake; this one goes on, and
// remembers where everything stands, so that what is wrong with a value can be told later with its line.
type decoder struct {
	problems []PolicyProblem
	failed   map[admission.Path]bool // what could not be decoded, so that nobody complains about its absence
	places   map[admission.Path]*token.Position
	anchors  map[string]*ast.AnchorNode
	open     []string // aliases being followed
	budget   int
}

func (d *decoder) reportAt(at *token.Position, path admission.Path, format string, args ...any) {
	p := PolicyProblem{Path: path, Message: fmt.Sprintf(format, args...)}
	if at != nil {
		p.Line, p.Column = at.Line, at.Column
	}
	d.problems = append(d.problems, p)
}

// fail reports that the node cannot become the value at the path.
func (d *decoder) fail(n ast.Node, path admission.Path, format string, args ...any) {
	d.reportAt(position(n), path, format, args...)
	d.failed[path] = true
}

// broken reports whether the path lies in something that could not be decoded.
func (d *decoder) broken(path admission.Path) bool {
	for p := range within(path) {
		if d.failed[p] {
			return true
		}
	}
	return false
}

// place is where the path stands, or the nearest that it lies in.
func (d *decoder) place(path admission.Path) *token.Position {
	for p := range within(path) {
		if at, ok := d.places[p]; ok {
			return at
		}
	}
	return nil
}

// within yields the path and all that it may lie in, the nearest first. Dots and brackets within a quoted key are taken
// for the ends of paths too, which nothing has.
func within(path admission.Path) func(yield func(admission.Path) bool) {
	return func(yield func(admission.Path) bool) {
		for {
			if !yield(path) || path == "" {
				return
			}
			path = path[:max(strings.LastIndexAny(string(path), ".["), 0)]
		}
	}
}

func (d *decoder) root(n ast.Node, doc *admission.Document) {
	d.anchors = map[string]*ast.AnchorNode{}
	ast.Walk(anchorFinder{d}, n)
	d.places[""] = position(n)
	d.value(n, "", reflect.ValueOf(doc).Elem())
}

type anchorFinder struct{ d *decoder }

// Visit collects anchors.
func (f anchorFinder) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok {
		name := a.Name.GetToken().Value
		if _, twice := f.d.anchors[name]; twice {
			f.d.reportAt(position(a), "", "anchor &%s is set a second time; rename it", name)
		}
		f.d.anchors[name] = a
	}
	return f
}

// position is where a person would look for the node.
func position(n ast.Node) *token.Position {
	switch v := n.(type) {
	case *ast.MappingNode:
		if !v.IsFlowStyle && len(v.Values) > 0 {
			return position(v.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return position(v.Key)
	case nil:
		return nil
	}
	if t := n.GetToken(); t != nil {
		return t.Position
	}
	return nil
}

// value decodes the node into v.
func (d *decoder) value(n ast.Node, path admission.Path, v reflect.Value) {
	n, done, ok := d.resolve(n, path)
	if !ok {
		return
	}
	defer done()
	if _, null := n.(*ast.NullNode); null {
		d.fail(n, path, "is empty; write a value or remove it")
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if text, ok := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr()); ok {
		d.text(n, path, text)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.structure(n, path, v)
	case reflect.Map:
		d.dictionary(n, path, v)
	case reflect.Slice:
		d.list(n, path, v)
	default:
		d.scalar(n, path, v)
	}
}

// resolve follows anchors and aliases. The caller calls done when it is through with the node.
func (d *decoder) resolve(n ast.Node, path admission.Path) (node ast.Node, done func(), ok bool) {
	depth := len(d.open)
	done = func() { d.open = d.open[:depth] }
	for {
		if depth > 0 || len(d.open) > 0 {
			if d.budget--; d.budget < 0 {
				if d.budget == -1 {
					d.fail(n, path, "aliases stand for more than %d values", maxAliased)
				}
				done()
				return nil, nil, false
			}
		}
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.AliasNode:
			name := v.Value.GetToken().Value
			target, known := d.anchors[name]
			switch {
			case !known:
				d.fail(n, path, "alias *%s has no anchor &%s", name, name)
				done()
				return nil, nil, false
			case slices.Contains(d.open, name):
				d.fail(n, path, "alias *%s lies within its own anchor", name)
				done()
				return nil, nil, false
			}
			d.open = append(d.open, name)
			n = target.Value
		case *ast.TagNode:
			d.fail(n, path, "has a tag, %s; remove it", v.GetToken().Value)
			done()
			return nil, nil, false
		case nil:
			done()
			return nil, nil, false
		default:
			return n, done, true
		}
	}
}

func (d *decoder) text(n ast.Node, path admission.Path, into encoding.TextUnmarshaler) {
	text, ok := "", true
	switch v := n.(type) {
	case *ast.StringNode:
		text = v.Value
	case *ast.IntegerNode, *ast.FloatNode: // its own error says what is missing
		text = n.GetToken().Value
	default:
		ok = false
	}
	if !ok {
		d.fail(n, path, "is %s; needed is %s", kindOf(n), wanted(reflect.TypeOf(into).Elem()))
		return
	}
	if err := into.UnmarshalText([]byte(text)); err != nil {
		d.fail(n, path, "%s", err.Error())
	}
}

func (d *decoder) scalar(n ast.Node, path admission.Path, v reflect.Value) {
	t := n.GetToken()
	switch v.Kind() {
	case reflect.String:
		switch s := n.(type) {
		case *ast.StringNode:
			v.SetString(s.Value)
			return
		case *ast.LiteralNode:
			v.SetString(s.Value.Value)
			return
		case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
			if v.Type() != reflect.TypeFor[admission.Secret]() {
				d.fail(n, path, "is %s; needed is text: write %q", kindOf(n), t.Value)
				return
			}
		}
	case reflect.Bool:
		if b, ok := n.(*ast.BoolNode); ok {
			v.SetBool(b.Value)
			return
		}
	case reflect.Int64:
		if i, ok := plainInteger(n, t); ok {
			v.SetInt(i)
			return
		}
		if s, ok := n.(*ast.StringNode); ok && quoted(t) {
			if _, err := strconv.ParseInt(s.Value, 10, 64); err == nil {
				d.fail(n, path, "is text; needed is a whole number: write %s without quotes", s.Value)
				return
			}
		}
		switch n.(type) {
		case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
			d.fail(n, path, "is %.40s; needed is a whole number in plain decimal digits, such as 100", t.Value)
			return
		}
		if strings.Trim(t.Value, "+-0123456789eE._") == "" && !quoted(t) {
			d.fail(n, path, "is %.40s; needed is a whole number below 2^63 in plain decimal digits, such as 100", t.Value)
			return
		}
	case reflect.Float64:
		switch n.(type) {
		case *ast.IntegerNode, *ast.FloatNode:
			if f, err := strconv.ParseFloat(t.Value, 64); err == nil {
				v.SetFloat(f)
				return
			}
		}
	default: // no document has fields of other kinds
	}
	d.fail(n, path, "is %s; needed is %s", kindOf(n), wanted(v.Type()))
}

// plainInteger reads a number as people do. YAML has octal (010 is 8), hexadecimal and grouped digits besides; who
// writes such a thing in a policy made a slip.
func plainInteger(n ast.Node, t *token.Token) (int64, bool) {
	if _, ok := n.(*ast.IntegerNode); !ok {
		return 0, false
	}
	if !regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`).MatchString(t.Value) {
		return 0, false
	}
	i, err := strconv.ParseInt(t.Value, 10, 64)
	return i, err == nil
}

func quoted(t *token.Token) bool {
	return t.Type == token.DoubleQuoteType || t.Type == token.SingleQuoteType
}

func (d *decoder) list(n ast.Node, path admission.Path, v reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.fail(n, path, "is %s; needed is %s", kindOf(n), wanted(v.Type()))
		return
	}
	out := reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values))
	for i, item := range seq.Values {
		p := path.Index(i)
		d.places[p] = position(item)
		d.value(item, p, out.Index(i))
	}
	v.Set(out)
}

// kindOf names what was written, never what it says: it may be a secret.
func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a map"
	}
	return "something else"
}

// wanted names what a Go type is written as.
func wanted(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[admission.Duration]():
		return `a duration such as "250ms" or "30s"`
	case reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return `a rate such as "10/s" or "1/min"`
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "text"
	case reflect.Slice:
		return "a list, such as [" + strings.TrimPrefix(wanted(t.Elem()), "a ") + ", ...]"
	default:
		return "a map of fields, each on a line of its own"
	}
}
