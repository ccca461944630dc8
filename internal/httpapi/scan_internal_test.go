package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/admission"
)

// FuzzParseAsk holds the scanner against a slow reader on encoding/json's tokens: both accept the same, as the same.
func FuzzParseAsk(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, ` { } `, `{"tenant":"acme","class":"bulk","cost":3}`, `{"costs":{"requests":1,"llm_tokens":900}}`,
		`{"cost":10,"min_cost":1}`, `{"min_costs":{"requests":1}}`, `{"mode":"reserve","wait":"5s"}`, `{"mode":"queue"}`,
		`{"settle_later":true,"dry_run":false}`, `{"tenant":"\ud83d\ude00\u0041\n\/"}`, `{"tenant":"\ud800"}`,
		`{"tenant":"\ud800\u0041"}`, `{"t\u0065nant":"x"}`, `{"Tenant":"x"}`, "{\"tenant\":\"\xff\"}", `{"cost":1e3}`,
		`{"cost":1.0}`, `{"cost":-0}`, `{"cost":01}`, `{"cost":1099511627777}`, `{"cost":99999999999999999999}`,
		`{"cost":null}`, `{"cost":"1"}`, `{"cost":1,"cost":1}`, `{"cost":1}x`, `{"cost":1,}`, `[{}]`, `{"wait":"1s"}`,
		`{"costs":{}}`, `{"costs":{"a":1,"a":1}}`, `{"costs":{"}x":1}}`, `{"tenant":"a` + "\n" + `"}`, `{"tenant":[[[[`,
		`{"dry_run":tru}`, `{"dry_run":trueish}`, `{"wait":"9223372036854775807ns","mode":"reserve"}`, "\ufeff{}", `{"cost":NaN}`,
		`{"tenant":"` + strings.Repeat("é", 128) + `"}`, `{"tenant":"` + strings.Repeat("é", 129) + `"}`, `{"tenant":"\u12"}`, `{"tenant":"\`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		sameAsReference(t, body)
	})
}

// TestParseAsk_generated reaches deeper than a fuzzer does in a short run: asks that are nearly right.
func TestParseAsk_generated(t *testing.T) {
	t.Parallel()
	name := rapid.SampledFrom([]string{
		"tenant", "class", "cost", "costs", "min_cost", "min_costs", "mode", "wait", "settle_later", "dry_run", "x",
		"Cost", "idempotency_key", "metadata", `t\u0065nant`,
	})
	scalar := rapid.SampledFrom([]string{
		`"acme"`, `""`, `"reserve"`, `"reject"`, `"queue"`, `"500ms"`, `"61s"`, `"-1s"`, `"5"`, `0`, `1`, `7`, `-1`, `1.5`, `1e2`, `00`,
		`1099511627776`, `1099511627777`, `null`, `true`, `false`, `[]`, `{}`, `{"requests":2}`, `{"requests":9,"points":4}`,
		`{"points":3}`, `{"points":3,"points":3}`, `{"Points":3}`, `"\ud83d\ude00"`, `"\udc00"`, `"é"`, "\"\xc3\"", `"a`, `tru`, `{"a":{}}`,
	})
	space := rapid.SampledFrom([]string{"", "", "", " ", "\n\t"})
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		b.WriteString(space.Draw(t, "space") + "{")
		for i := range rapid.IntRange(0, 4).Draw(t, "fields") {
			if i > 0 {
				b.WriteString(space.Draw(t, "space") + ",")
			}
			fmt.Fprintf(&b, `%s"%s"%s:%s%s`, space.Draw(t, "space"), name.Draw(t, "name"), space.Draw(t, "space"),
				space.Draw(t, "space"), scalar.Draw(t, "value"))
		}
		b.WriteString(rapid.SampledFrom([]string{"}", "}", "}", "}", "} ", "", "}}", ",}"}).Draw(t, "end"))
		sameAsReference(t, []byte(b.String()))
	})
}

func sameAsReference(t require.TestingT, body []byte) {
	before := bytes.Clone(body)
	got, err := parseAsk(body)
	want, refErr := referenceAsk(before)
	require.Equal(t, refErr == nil, err == nil, "body %q: scanner %v, reference %v", before, err, refErr)
	require.Equal(t, before, body, "the body was changed")
	if err == nil {
		require.Equal(t, want, got, "body %q", before)
		clear(body) // what was read must not share memory with the body, which is used again
		require.Equal(t, want, got, "body %q was cleared", before)
		return
	}
	var wrong *admission.FieldError
	require.ErrorAs(t, err, &wrong)
	require.NotEmpty(t, wrong.Message)
	require.True(t, utf8.ValidString(wrong.Error()), "%q", wrong.Error())
	require.Less(t, len(wrong.Error()), 600)
}

type member struct {
	name  string
	value any // string, json.Number, bool, nil or []member
}

var errRefused = errors.New("refused")

// referenceAsk says the rules a second time, on encoding/json.
func referenceAsk(body []byte) (a admission.Ask, err error) {
	if len(body) == 0 {
		return a, nil
	}
	if !json.Valid(body) || !utf8.Valid(body) || bytes.TrimLeft(body, " \t\r\n")[0] != '{' {
		return a, errRefused
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if _, err := dec.Token(); err != nil {
		return a, err
	}
	members, err := readMembers(dec, body, 0)
	if err != nil {
		return a, err
	}
	seen := map[string]bool{}
	for _, m := range members {
		if seen[m.name] {
			return a, errRefused
		}
		seen[m.name] = true
		text, isText := m.value.(string)
		truth, isTruth := m.value.(bool)
		ok := false
		switch m.name {
		case "tenant":
			a.Tenant, ok = text, isText && len(text) <= 256
		case "class":
			a.Class, ok = text, isText && len(text) <= 63
		case "cost":
			a.Costs, ok = refCosts([]member{{"requests", m.value}})
		case "costs":
			a.Costs, ok = refCosts(m.value)
		case "min_cost":
			a.MinCosts, ok = refCosts([]member{{"requests", m.value}})
		case "min_costs":
			a.MinCosts, ok = refCosts(m.value)
		case "mode":
			a.Mode, ok = admission.Mode(text), text == "reject" || text == "reserve"
		case "wait":
			var err error
			a.Wait, err = time.ParseDuration(text)
			ok = isText && err == nil && a.Wait >= 0 && a.Wait <= time.Minute && text[0] != '-' && len(text) <= 64
		case "settle_later":
			a.SettleLater, ok = truth, isTruth
		case "dry_run":
			a.DryRun, ok = truth, isTruth
		}
		if !ok {
			return a, errRefused
		}
	}
	if seen["cost"] && seen["costs"] || seen["min_cost"] && seen["min_costs"] || seen["wait"] && a.Mode != "reserve" ||
		a.Mode == "reserve" && (a.DryRun || a.MinCosts != nil) {
		return a, errRefused
	}
	for unit, least := range a.MinCosts {
		most, ok := a.Costs[unit]
		if a.Costs == nil {
			most, ok = 1, unit == "requests"
		}
		if !ok || least > most {
			return a, errRefused
		}
	}
	return a, nil
}

func refCosts(v any) (map[string]int64, bool) {
	members, ok := v.([]member)
	if !ok || len(members) == 0 || len(members) > 64 {
		return nil, false
	}
	costs := map[string]int64{}
	for _, m := range members {
		number, ok := m.value.(json.Number)
		n, err := strconv.ParseInt(string(number), 10, 64)
		_, twice := costs[m.name]
		if !ok || err != nil || n < 0 || number[0] == '-' || n > 1<<40 || twice ||
			!regexp.MustCompile(`\A[a-z0-9][a-z0-9._-]{0,62}\z`).MatchString(m.name) {
			return nil, false
		}
		costs[m.name] = n
	}
	return costs, true
}

// readMembers reads the rest of an object in order, duplicates included.
func readMembers(dec *json.Decoder, body []byte, depth int) (members []member, err error) {
	for dec.More() {
		name, err := readString(dec, body)
		if err != nil {
			return nil, err
		}
		m := member{name: name.(string)}
		if m.value, err = readString(dec, body); err != nil {
			return nil, err
		}
		switch d, _ := m.value.(json.Delim); {
		case d == '{' && depth < 2:
			if m.value, err = readMembers(dec, body, depth+1); err != nil {
				return nil, err
			}
		case d != 0:
			return nil, errRefused // no array, and nothing deeper, is ever right
		}
		members = append(members, m)
	}
	_, err = dec.Token()
	return members, err
}

// readString reads a token, and refuses strings with half a surrogate pair, which encoding/json replaces.
func readString(dec *json.Decoder, body []byte) (json.Token, error) {
	from := dec.InputOffset()
	token, err := dec.Token()
	if _, ok := token.(string); !ok || err != nil {
		return token, err
	}
	var half bool
	raw := body[from:dec.InputOffset()]
	for _, e := range regexp.MustCompile(`\\(u[0-9a-fA-F]{4}|.)|[^\\]`).FindAllString(string(raw), -1) {
		code := int64(0)
		if strings.HasPrefix(e, `\u`) {
			code, _ = strconv.ParseInt(e[2:], 16, 32)
		}
		high, low := code >= 0xD800 && code < 0xDC00, code >= 0xDC00 && code < 0xE000
		if half != low {
			return nil, errRefused
		}
		half = high
	}
	return token, nil
}

// Nothing that is read may take longer than its length deserves, or run out of stack.
func TestParse_hostile(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`[`, maxBody-20)
	for name, body := range map[string]string{
		"deep value":  `{"tenant":` + deep,
		"deep object": strings.Repeat(`{"costs":`, 6000),
		"deep body":   deep,
		"long name":   `{"` + strings.Repeat("a", maxBody-10) + `":1}`,
		"many units":  `{"costs":{` + manyUnits(5000) + `}}`,
		"long number": `{"cost":` + strings.Repeat("9", maxBody-20) + `}`,
		"long text":   `{"tenant":"` + strings.Repeat(`\u0041`, 10000) + `"}`,
	} {
		_, err := parseAsk([]byte(body))
		var wrong *admission.FieldError
		require.ErrorAs(t, err, &wrong, name)
		require.Less(t, len(wrong.Error()), 600, name)
	}
	_, _, err := parseBatch([]byte(`{"items":[` + strings.TrimSuffix(strings.Repeat(`{},`, 1001), ",") + `]}`))
	require.ErrorContains(t, err, "at most 1000")
}

func manyUnits(n int) string {
	units := make([]string, n)
	for i := range units {
		units[i] = fmt.Sprintf(`"u%d":1`, i)
	}
	return strings.Join(units, ",")
}

func TestNearest(t *testing.T) {
	t.Parallel()
	for written, want := range map[string]string{
		"Tenant": "tenant", "tennant": "tenant", "dry-run": "dry_run", "settleLater": "settle_later", "cots": "costs",
		"mincost": "min_cost", "zzz": "", "": "",
	} {
		require.Equal(t, want, nearest(written, askFields), written)
	}
	require.True(t, slices.IsSortedFunc([]int{distance("a", "a"), distance("ab", "ac"), distance("", "abc")}, func(a, b int) int { return a - b }))
}
