package admission

import (
	"encoding/base64"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/sluicehq/sluice/bucket"
)

const maxTickets = 100_000_000

func presets() []string {
	return []string{
		"ietf", "openai", "anthropic", "stripe", "shopify_rest", "shopify_graphql", "github", "hubspot", "salesforce",
		"amazon_sp", "twilio", "notion", "jira", "zendesk", "discord", "gitlab", presetGeneric,
	}
}

const presetGeneric = "generic"

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (c *checker) queue(at Path, q *QueueDocument, limits []LimitDocument) {
	if q == nil {
		return
	}
	c.integer(at.Key("max_length"), q.MaxLength, 1, maxTickets)
	c.integer(at.Key("max_length_per_tenant"), q.MaxLengthPerTenant, 1, maxTickets)
	if *q.MaxLength >= 1 && *q.MaxLengthPerTenant > *q.MaxLength {
		c.add(at.Key("max_length_per_tenant"), "is %d, more than max_length, which is %d; lower it", *q.MaxLengthPerTenant, *q.MaxLength)
	}
	oneOf(c, at.Key("overflow"), q.Overflow, "", "reject_new", "drop_oldest")
	largest := int64(1)
	for _, l := range limits {
		if l.Kind == bucket.TokenBucket && l.Capacity != nil {
			largest = max(largest, *l.Capacity)
		}
	}
	if *q.Headroom < 0 || *q.Headroom >= largest {
		c.add(at.Key("headroom"), "is %d; allowed are whole numbers from 0 to below the largest capacity, %d", *q.Headroom, largest)
	}
	c.duration(at.Key("look_ahead"), q.LookAhead, 0, second)
	c.number(at.Key("lower_tier_share"), q.LowerTierShare, 0, 0.5)
	c.duration(at.Key("use_within"), q.UseWithin, second, hour)
	c.duration(at.Key("max_age"), q.MaxAge, second, year)
}

func (c *checker) store(at Path, s *StoreDocument) {
	c.duration(at.Key("timeout"), s.Timeout, millisecond, 10*second)
	oneOf(c, at.Key("on_failure"), s.OnFailure, "", FailLocal, FailOpen, FailClosed)
	c.integer(at.Key("min_replicas"), s.MinReplicas, 0, 10_000)
}

func (c *checker) lease(at Path, l *LeaseDocument, limits []LimitDocument) {
	if l == nil {
		return
	}
	c.integer(at.Key("max_tokens"), l.MaxTokens, 0, bucket.MaxSize)
	c.duration(at.Key("ttl"), l.TTL, 100*millisecond, 60*second)
	for _, d := range limits {
		if *l.MaxTokens > 0 && d.Oversize == oversizeDebt {
			c.add(at.Key("max_tokens"), "is %d, but limit %q has oversize: debt, which cannot be leased; set it to 0 or remove oversize", *l.MaxTokens, d.Name)
		}
	}
}

func (c *checker) partner(at Path, p *PartnerDocument) {
	if p == nil {
		return
	}
	oneOf(c, at.Key("preset"), p.Preset, "", presets()...)
	oneOf(c, at.Key("scope"), p.Scope, "", "dependency", "tenant")
	switch h := p.Headers; {
	case h == nil && p.Preset == presetGeneric:
		c.add(at.Key("headers"), "is missing; preset generic needs at least one of limit, remaining, used and reset")
	case h != nil && p.Preset != presetGeneric:
		c.add(at.Key("headers"), "belongs to preset generic only; remove it")
	case h != nil:
		token := regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
		names := []struct{ field, header string }{{"limit", h.Limit}, {"remaining", h.Remaining}, {"used", h.Used}, {"reset", h.Reset}}
		none := true
		for _, n := range names {
			none = none && n.header == ""
			if n.header != "" && !token.MatchString(n.header) {
				c.add(at.Key("headers").Key(n.field), "is %.80q; allowed is the name of an HTTP header (RFC 9110, section 5.1)", n.header)
			}
		}
		if none {
			c.add(at.Key("headers"), "names no header; preset generic needs at least one of limit, remaining, used and reset")
		}
		oneOf(c, at.Key("headers").Key("reset_kind"), h.ResetKind, "",
			"delta_seconds", "delta_ms", "epoch_s", "epoch_ms", "rfc3339", "http_date", "go_duration")
	}
	if b := p.Breaker; b != nil {
		c.integer(at.Key("breaker").Key("failures"), b.Failures, 1, 1_000_000)
		c.duration(at.Key("breaker").Key("window"), b.Window, second, hour)
		c.duration(at.Key("breaker").Key("open"), b.Open, 100*millisecond, hour)
	}
}

func (c *checker) jobs(at Path, j *JobsDocument) {
	if j == nil {
		return
	}
	c.duration(at.Key("timeout"), j.Timeout, 10*millisecond, hour)
	c.integer(at.Key("max_attempts"), j.MaxAttempts, 1, 1000)
	c.integer(at.Key("max_throttled"), j.MaxThrottled, 1, 1_000_000)
	c.duration(at.Key("backoff").Key("initial"), j.Backoff.Initial, millisecond, day)
	c.number(at.Key("backoff").Key("multiplier"), j.Backoff.Multiplier, 1, 100)
	c.duration(at.Key("backoff").Key("max"), j.Backoff.Max, millisecond, day)
	if *j.Backoff.Initial > *j.Backoff.Max {
		c.add(at.Key("backoff").Key("max"), "is %s, less than initial, which is %s; raise it", *j.Backoff.Max, *j.Backoff.Initial)
	}
	oneOf(c, at.Key("delivery"), j.Delivery, "", "at_least_once", "at_most_once")
	for i, code := range j.NoRetry {
		switch {
		case code < 300 || code > 599:
			c.add(at.Key("no_retry").Index(i), "is %d; allowed are HTTP statuses from 300 to 599: 2xx is success", code)
		case slices.Index(j.NoRetry, code) < i:
			c.add(at.Key("no_retry").Index(i), "names %d a second time; remove it", code)
		}
	}
	c.hosts(at.Key("allow_hosts"), j.AllowHosts)
}

func (c *checker) retention(at Path, r *RetentionDocument) {
	if r == nil {
		return
	}
	c.duration(at.Key("done"), r.Done, 0, year)
	c.integer(at.Key("done_max"), r.DoneMax, 0, maxTickets)
	c.duration(at.Key("dead"), r.Dead, second, year)
}

func (c *checker) callbacks(at Path, b *CallbacksDocument) {
	if b == nil {
		return
	}
	variable := regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	for i, s := range b.Secrets {
		name, isEnv := strings.CutPrefix(string(s), "env:")
		path, isFile := strings.CutPrefix(string(s), "file:")
		// What was written is never repeated: it may be a secret with a slip of the pen.
		if (isEnv && !variable.MatchString(name)) || (isFile && path == "") || (!isEnv && !isFile && !isSigningKey(string(s))) {
			c.add(at.Key("secrets").Index(i), "is no secret; allowed are env:NAME, file:PATH, whsec_ with the base64 of 24 to 64 bytes, or whsk_ with that of 32")
		}
	}
	c.hosts(at.Key("allow_hosts"), b.AllowHosts)
}

// isSigningKey reports whether the text is a key as Standard Webhooks 1.0.0 writes them.
func isSigningKey(text string) bool {
	symmetric, isSymmetric := strings.CutPrefix(text, "whsec_")
	private, isPrivate := strings.CutPrefix(text, "whsk_")
	switch {
	case isSymmetric:
		key, err := base64.StdEncoding.DecodeString(symmetric)
		return err == nil && len(key) >= 24 && len(key) <= 64
	case isPrivate:
		key, err := base64.StdEncoding.DecodeString(private)
		return err == nil && len(key) == 32
	}
	return false
}

const hostRule = `allowed are host names ("api.example.com"), globs ("*.example.com"), addresses and networks ("10.0.0.0/8"), without scheme, port or path`

// hosts checks the entries of an allow_hosts list.
func (c *checker) hosts(at Path, hosts []string) {
	label := regexp.MustCompile(`^[a-z0-9_*]([a-z0-9_*-]{0,61}[a-z0-9_*])?$`)
	numeric := regexp.MustCompile(`^(0x[0-9a-f]*|[0-9]+)$`)
	for i, h := range hosts {
		p := at.Index(i)
		if addr, err := netip.ParseAddr(h); err == nil {
			if addr.Zone() != "" || addr.Is4In6() {
				c.add(p, "is %.80q; write the address without a zone, and IPv4 as IPv4", h)
			}
			continue
		}
		if strings.Contains(h, "/") {
			if net, err := netip.ParsePrefix(h); err != nil {
				c.add(p, "is %.80q; %s", h, hostRule)
			} else if net != net.Masked() {
				c.add(p, "is %.80q, which has bits set beyond its length; write %s", h, net.Masked())
			}
			continue
		}
		labels := strings.Split(h, ".")
		good := len(h) <= 253
		for _, l := range labels {
			good = good && label.MatchString(l)
		}
		switch {
		case !good && label.MatchString(strings.ToLower(labels[0])) && h != strings.ToLower(h):
			c.add(p, "is %.80q; write it in lower case", h)
		case !good:
			c.add(p, "is %.80q; %s", h, hostRule)
		case numeric.MatchString(labels[len(labels)-1]):
			c.add(p, "is %.80q, which reads as an address in another notation; write four decimal numbers", h)
		}
	}
}
