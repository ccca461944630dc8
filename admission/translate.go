package admission

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicehq/sluice/bucket"
)

const (
	idPrefix = "adm_"
	// maxCost bounds every cost; larger ones fit no limit.
	maxCost = bucket.MaxSize
)

var idAlphabet = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding) //nolint:gochecknoglobals // a constant table

// newID returns a prefix and 100 random bits in 20 characters. The generator is seeded by the operating system; ids are
// names and no secrets.
func newID() string {
	var raw [16]byte
	binary.LittleEndian.PutUint64(raw[:], rand.Uint64())
	binary.LittleEndian.PutUint64(raw[8:], rand.Uint64())
	var out [len(idPrefix) + 26]byte
	copy(out[:], idPrefix)
	idAlphabet.Encode(out[len(idPrefix):], raw[:])
	return string(out[:len(idPrefix)+20])
}

func validID(id string) bool {
	if len(id) != len(idPrefix)+20 || !strings.HasPrefix(id, idPrefix) {
		return false
	}
	for _, c := range id[len(idPrefix):] {
		if (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}

// compile turns an ask into what the limits are asked. never, if not empty, is the limit that its cost can never fit.
func (p *Policy) compile(a *Ask) (q bucket.Ask, never string, err error) {
	if len(a.Tenant) > maxTenant || !utf8.ValidString(a.Tenant) {
		return q, "", &FieldError{Field: "tenant", Message: "must be valid UTF-8 of at most 256 bytes"}
	}
	set, err := p.Set(a.Tenant, a.Class)
	if err != nil {
		return q, "", err
	}
	q = bucket.Ask{
		Set: set, Tenant: a.Tenant, Class: a.Class, ID: newID(), DryRun: a.DryRun, Stands: p.OnFailure() == FailOpen,
	}
	switch a.Mode {
	case "", ModeReject:
		if a.Wait != 0 {
			return q, "", &FieldError{Field: "wait", Message: `goes with mode "reserve" only`}
		}
	case ModeReserve:
		if a.Wait < 0 || a.Wait > bucket.MaxAhead {
			return q, "", &FieldError{Field: "wait", Message: "must be from 0s to 60s"}
		}
		if a.MinCosts != nil {
			return q, "", &FieldError{Field: "min_cost", Message: `goes with mode "reject" only`}
		}
		q.Verb, q.MaxWait = bucket.Reserve, a.Wait
	default:
		return q, "", &FieldError{Field: "mode", Message: `must be "reject" or "reserve"`}
	}
	if q.Costs, err = p.costs(set, "cost", a.Costs, 0); err != nil {
		return q, "", err
	}
	if a.MinCosts != nil {
		if q.Min, err = p.minima(set, a, q.Costs); err != nil {
			return q, "", err
		}
	}
	if a.SettleLater {
		q.SettleWithin = p.SettleWithin()
	}
	if a.IdempotencyKey != "" && !a.DryRun {
		p.key(&q, a)
	}
	return q, neverFits(&q), nil
}

// costs puts the costs into the order of the set's units; nil for nil, which is the default. A unit of the policy that
// none of the set's limits counts is left out; one that the policy does not know is a mistake. What is not given is
// `other`.
func (p *Policy) costs(set *bucket.Set, field string, costs map[string]int64, other int64) ([]int64, error) {
	if costs == nil {
		return nil, nil
	}
	out := make([]int64, len(set.Units()))
	for i := range out {
		out[i] = other
	}
	for unit, n := range costs {
		at := field
		if len(costs) > 1 || unit != bucket.Requests {
			at = field + "s." + unit
		}
		if n < 0 || n > maxCost {
			return nil, &FieldError{Field: at, Message: "must be a whole number from 0 to " + strconv.FormatInt(maxCost, 10)}
		}
		if i := slices.Index(set.Units(), unit); i >= 0 {
			out[i] = n
		} else if unit != bucket.Requests && !slices.Contains(p.units, unit) {
			return nil, &FieldError{Field: at, Message: "is counted by no limit of this dependency; its units are " + p.unitList()}
		}
	}
	if _, given := costs[bucket.Requests]; !given && other == 0 {
		// An ask is one request even where it names other costs only.
		if i := slices.Index(set.Units(), bucket.Requests); i >= 0 {
			out[i] = 1
		}
	}
	return out, nil
}

func (p *Policy) unitList() string {
	if len(p.units) == 0 {
		return "none"
	}
	return strings.Join(p.units, ", ")
}

func (p *Policy) minima(set *bucket.Set, a *Ask, costs []int64) ([]int64, error) {
	least, err := p.costs(set, "min_cost", a.MinCosts, -1)
	if err != nil {
		return nil, err
	}
	for i, unit := range set.Units() {
		most := int64(0)
		switch {
		case costs != nil:
			most = costs[i]
		case unit == bucket.Requests:
			most = 1
		}
		switch {
		case least[i] < 0:
			least[i] = most
		case least[i] > most:
			return nil, &FieldError{
				Field: "min_cost", Message: fmt.Sprintf("must not be over the cost of %s, which is %d", unit, most),
			}
		}
	}
	return least, nil
}

// key names the ask's idempotency record: its scope is the API key, the dependency, the operation and the key.
func (p *Policy) key(q *bucket.Ask, a *Ask) {
	h := sha256.New()
	for _, part := range []string{a.APIKeyID, p.name, "admissions", a.IdempotencyKey} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	q.Key = idAlphabet.EncodeToString(h.Sum(nil))[:26]
	h.Reset()
	class, mode := orText(a.Class, DefaultClass), orText(a.Mode, ModeReject)
	fmt.Fprintf(h, "%q %q %q %d %t", a.Tenant, class, mode, a.Wait, a.SettleLater)
	given := a.Costs
	if len(given) == 1 && given[bucket.Requests] == 1 {
		given = nil // what it is where nothing is said
	}
	for _, costs := range []map[string]int64{given, a.MinCosts} {
		for _, unit := range slices.Sorted(maps.Keys(costs)) {
			fmt.Fprintf(h, " %q=%d", unit, costs[unit])
		}
		fmt.Fprint(h, ";")
	}
	q.Fingerprint = hex.EncodeToString(h.Sum(nil)[:8])
	q.KeyTTL = p.IdempotencyTTL()
}

// neverFits names the first limit that the cost can never fit.
func neverFits(q *bucket.Ask) string {
	for i, l := range q.Set.Limits() {
		c := q.Least(i)
		if l.Shadow || c <= l.Size {
			continue
		}
		if l.Kind == bucket.TokenBucket && l.Debt && c <= bucket.MaxCredits/l.Refill.P {
			continue
		}
		return l.Name
	}
	return ""
}

func (p *Policy) neverFits(set *bucket.Set, limit string, now time.Time) Decision {
	d := Decision{
		Outcome: OutcomeRejected, Reason: ReasonCostExceeds, Source: SourceRedis, StoreMode: storeRedis,
		PolicyVersion: p.version, Now: now,
	}
	for _, l := range set.Limits() {
		if l.Name == limit {
			d.Detail = fmt.Sprintf("The cost is over %d, which is all that limit %q ever has at once.", l.Size, limit)
		}
	}
	return d
}

// decision tells the limits' answer in the API's words.
func (p *Policy) decision(q *bucket.Ask, ans *bucket.Answer) Decision {
	d := Decision{
		ID: ans.ID, Outcome: OutcomeAdmitted, Source: SourceRedis, StoreMode: storeRedis, PolicyVersion: p.version,
		Now: ans.Now, Replayed: ans.Replayed,
	}
	limits := q.Set.Limits()
	if len(ans.Limits) == len(limits) {
		d.Limits = make([]LimitState, len(limits))
		for i, st := range ans.Limits {
			d.Limits[i] = LimitState{
				Limit: limits[i], Remaining: st.Remaining, Reset: st.Reset, Wait: st.Wait, Pressed: q.CostOf(i) > 0,
			}
		}
	}
	switch ans.Outcome {
	case bucket.Admitted:
		admitted(&d, q, ans)
	case bucket.Refused:
		refused(&d, q, ans)
	case bucket.Mismatch:
		d.Outcome, d.Reason = OutcomeRejected, ReasonMismatch
		d.Detail = "The idempotency key was used for another ask; use a new key for a new ask."
	case bucket.Aborted:
		d.Outcome, d.Reason = OutcomeRejected, ReasonBatch
		d.Detail = "Nothing was taken, because another item of the batch was refused."
	case bucket.Unknown, bucket.TooLate:
	}
	return d
}

func admitted(d *Decision, q *bucket.Ask, ans *bucket.Answer) {
	if q.Min != nil && len(ans.Taken) == len(q.Set.Units()) {
		d.Taken = make(map[string]int64, len(ans.Taken))
		for i, unit := range q.Set.Units() {
			d.Taken[unit] = ans.Taken[i]
		}
	}
	if q.Verb == bucket.Reserve {
		d.StartIn, d.StartAt = ans.StartIn, ans.Now.Add(ans.StartIn)
	}
	if !ans.ExpiresAt.IsZero() || !ans.SettleBy.IsZero() {
		d.Grant = &Grant{ExpiresAt: ans.ExpiresAt, SettleBy: ans.SettleBy}
	}
}

func refused(d *Decision, q *bucket.Ask, ans *bucket.Answer) {
	d.Outcome, d.Reason = OutcomeRejected, ReasonLimit
	for i := range d.Limits {
		s := &d.Limits[i]
		if q.Verb == bucket.Reserve && s.Limit.OnExceeded != bucket.Reject && s.Wait != bucket.Forever {
			s.Wait = max(0, s.Wait-q.MaxWait) // a slot within its wait would do
		}
		if (s.Wait > 0 || i == ans.BlockedBy) && !s.Limit.Shadow {
			d.Violated = append(d.Violated, s.Limit.Name)
		}
	}
	if i := ans.BlockedBy; i >= 0 && i < len(d.Limits) {
		l := d.Limits[i].Limit
		d.BlockedBy = l.Name
		if l.Kind == bucket.Quota {
			d.Reason = ReasonQuota
		}
	}
	if ans.Available == bucket.Forever {
		// Only an all-or-nothing batch comes here: each of its items fits, their sum never does.
		d.Reason, d.Forever, d.BlockedBy = ReasonCostExceeds, true, ""
		d.Detail = "The items of the batch together cost more than a limit ever has at once."
		return
	}
	d.Available, d.RetryAfter = ans.Available, ans.RetryAfter
	d.Detail = fmt.Sprintf("Limit %q has no room for this ask now; it would fit in %s.", d.BlockedBy, d.Available)
}
