package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/sluicehq/sluice/admission"
)

// entry is one key of a map with its value.
type entry struct {
	key   ast.Node
	name  string
	value ast.Node
}

// entries lists the keys of a map in their order, the first of those that are repeated, then what is merged in (<<)
// and not said already.
func (d *decoder) entries(n ast.Node, path admission.Path, what string) ([]entry, bool) {
	var values []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
		d.fail(n, path, "is %s; needed is %s", kindOf(n), what)
		return nil, false
	}
	var out []entry
	var merged []ast.Node
	seen := map[string]ast.Node{}
	for _, v := range values {
		if v.Key.IsMergeKey() {
			merged = append(merged, v.Value)
			continue
		}
		name, ok := keyText(v.Key)
		if !ok {
			d.reportAt(position(v.Key), path, "a key must be plain text")
			continue
		}
		if before, twice := seen[name]; twice {
			line := 0
			if p := position(before); p != nil {
				line = p.Line
			}
			d.reportAt(position(v.Key), path.Key(name), "is there already, in line %d; remove one", line)
			continue
		}
		seen[name] = v.Key
		out = append(out, entry{key: v.Key, name: name, value: v.Value})
	}
	for _, m := range merged {
		d.merge(m, path, func(e entry) {
			if _, said := seen[e.name]; !said {
				seen[e.name] = e.key
				out = append(out, e)
			}
		})
	}
	return out, true
}

// merge yields the entries of what << names: a map or a list of maps.
func (d *decoder) merge(n ast.Node, path admission.Path, yield func(entry)) {
	n, done, ok := d.resolve(n, path)
	if !ok {
		return
	}
	defer done()
	if seq, isList := n.(*ast.SequenceNode); isList {
		for _, item := range seq.Values {
			if _, nested := item.(*ast.SequenceNode); !nested {
				d.merge(item, path, yield)
			}
		}
		return
	}
	inner, ok := d.entries(n, path, "a map to merge")
	if !ok {
		return
	}
	for _, e := range inner {
		// What is merged is written elsewhere and counts as an alias.
		d.budget--
		yield(e)
	}
}

func keyText(key ast.Node) (string, bool) {
	switch k := key.(type) {
	case *ast.StringNode:
		return k.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode, *ast.InfinityNode, *ast.NanNode:
		return k.GetToken().Value, true // a tenant may be called 17 or null
	case *ast.AnchorNode:
		return keyText(k.Value)
	}
	return "", false
}

func (d *decoder) structure(n ast.Node, path admission.Path, v reflect.Value) {
	entries, ok := d.entries(n, path, wanted(v.Type()))
	if !ok {
		return
	}
	names := fieldNames(v.Type())
	for _, e := range entries {
		i := slices.Index(names, e.name)
		if i < 0 {
			d.reportAt(position(e.key), path.Key(e.name), "is no known field; %s", suggest(e.name, names))
			continue
		}
		p := path.Key(e.name)
		d.note(p, e)
		d.value(e.value, p, v.Field(i))
	}
}

func (d *decoder) dictionary(n ast.Node, path admission.Path, v reflect.Value) {
	entries, ok := d.entries(n, path, "a map of names, each on a line of its own")
	if !ok {
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), len(entries))
	for _, e := range entries {
		p := path.Key(e.name)
		d.note(p, e)
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(e.value, p, item)
		out.SetMapIndex(reflect.ValueOf(e.name), item)
	}
	v.Set(out)
}

// note remembers where an entry stands: what it says where that is one word, else its key.
func (d *decoder) note(path admission.Path, e entry) {
	switch e.value.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.LiteralNode:
		d.places[path] = position(e.value)
	default:
		d.places[path] = position(e.key)
	}
}

// fieldNames are the names of a struct's fields in a document, by index.
func fieldNames(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		tag := t.Field(i).Tag
		name := tag.Get("yaml")
		if name == "" {
			name, _, _ = strings.Cut(tag.Get("json"), ",")
		}
		names[i] = name
	}
	return names
}

// otherWords are what comparable systems call our fields.
func otherWords() map[string]string {
	return map[string]string{
		"rate": "refill", "rps": "refill", "burst": "capacity", "size": "capacity", "interval": "window",
		"timezone": "time_zone", "tz": "time_zone", "period": "every", "concurrency": "max", "ttl": "max_hold",
		"type": "kind", "scope": "per", "retries": "max_attempts",
	}
}

// suggest names the known fields, those first that may have been meant.
func suggest(name string, known []string) string {
	var near []string
	add := func(word string) {
		if slices.Contains(known, word) && !slices.Contains(near, word) {
			near = append(near, word)
		}
	}
	limit := 1 + len(name)/4
	for _, k := range known {
		if distance(name, k) <= limit {
			add(k)
		}
	}
	words := otherWords()
	for _, other := range slices.Sorted(maps.Keys(words)) {
		if distance(name, other) <= min(1, len(name)/2) {
			add(words[other])
		}
	}
	list := "allowed are " + strings.Join(known, ", ")
	if len(near) == 0 {
		return list
	}
	return fmt.Sprintf("did you mean %s? %s", strings.Join(near, " or "), list)
}

// distance is how many letters must be changed, added or left out to make one word of the other (Levenshtein); words
// that are too long to be a slip are infinitely far.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 1 << 30
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := last
			if a[i] != b[j] {
				cost++
			}
			last = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
