package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
	"github.com/sluicehq/sluice/internal/config"
)

const checkHelp = `Check reads a policy file and names every mistake with its line and column and what is allowed, or else says what each
limit lets through at worst within any second, minute and hour, and what this version does not act on yet. It talks to
nobody. The exit code is 1 where there are mistakes.`

func (p *program) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a policy file and print the worst case of its limits",
		Long:  checkHelp,
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return p.check(args[0])
		},
	}
}

func (p *program) check(path string) error {
	doc, err := config.LoadPolicies(path, offered)
	if err != nil {
		return err
	}
	parts, err := unenforced(doc)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%s is right. What each limit lets through at most in any interval of that length:\n\n", path)
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "DEPENDENCY\tLIMIT\tOF\tKIND\tPER\tUNIT\tAT ONCE\tSECOND\tMINUTE\tHOUR")
	for _, name := range slices.Sorted(maps.Keys(doc.Dependencies)) {
		d := doc.Dependencies[name]
		if d.Unlimited {
			fmt.Fprintf(table, "%s\t(unlimited)\t\t\t\t\t-\t-\t-\t-\n", name)
			continue
		}
		rows, err := worstRows(name, d)
		if err != nil {
			return err
		}
		for _, r := range rows {
			w := r.worst
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, w.Limit.Name, r.of, kind(w.Limit), w.Limit.Per,
				unit(w.Limit), most(atOnce(w.Limit)), most(w.PerSecond), most(w.PerMinute), most(w.PerHour))
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		of := name
		if of == "" {
			of = path
		}
		fmt.Fprintf(p.stdout, "\nNot in force in this version, %s: %s\n", of, strings.Join(parts[name], ", "))
	}
	return nil
}

// worstRow is the worst case of one limit for those that it is of.
type worstRow struct {
	of    string // "all", a plan or a tenant
	worst admission.Worst
}

// worstRows lists the limits of a dependency: the policy's own, and where a plan or a tenant has another worst case,
// that. Each limit's rows stand together.
func worstRows(name string, d admission.DependencyDocument) ([]worstRow, error) {
	base, err := admission.Compile(name, 0, d)
	if err != nil {
		return nil, err
	}
	common := admission.WorstCase(base.Limits())
	rows := make([][]worstRow, len(common))
	for i, w := range common {
		rows[i] = []worstRow{{of: "all", worst: w}}
	}
	for _, v := range variants(d) {
		own := d
		own.Limits = slices.Clone(d.Limits)
		own.Tenants = map[string]admission.TenantDocument{"": v.tenant}
		policy, err := admission.Compile(name, 0, own)
		if err != nil {
			return nil, err
		}
		for _, w := range worstOfTenant(policy) {
			i := slices.IndexFunc(common, func(c admission.Worst) bool { return c.Limit.Name == w.Limit.Name })
			if c := common[i]; c.Limit.Size != w.Limit.Size || c.PerSecond != w.PerSecond || c.PerMinute != w.PerMinute || c.PerHour != w.PerHour {
				rows[i] = append(rows[i], worstRow{of: v.of, worst: w})
			}
		}
	}
	return slices.Concat(rows...), nil
}

// worstOfTenant is the worst case of each limit for the tenant without a name, whatever its class.
func worstOfTenant(p *admission.Policy) []admission.Worst {
	var limits []*bucket.Limit
	for _, class := range p.Classes() {
		set, err := p.Set("", class)
		if err != nil {
			continue // every class of a policy has a set
		}
		for _, l := range set.Limits() {
			if !slices.ContainsFunc(limits, func(k *bucket.Limit) bool { return k.Name == l.Name }) {
				limits = append(limits, l)
			}
		}
	}
	return admission.WorstCase(limits)
}

// variant is a set of overrides that some tenants have.
type variant struct {
	of     string
	tenant admission.TenantDocument
}

func variants(d admission.DependencyDocument) []variant {
	var all []variant
	for _, plan := range slices.Sorted(maps.Keys(d.Plans)) {
		all = append(all, variant{of: "plan " + plan, tenant: admission.TenantDocument{Plan: plan}})
	}
	for _, tenant := range slices.Sorted(maps.Keys(d.Tenants)) {
		if t := d.Tenants[tenant]; len(t.Limits) > 0 {
			all = append(all, variant{of: "tenant " + strconv.Quote(tenant), tenant: t})
		}
	}
	return all
}

func kind(l *bucket.Limit) string {
	if l.Shadow {
		return string(l.Kind) + " (shadow)"
	}
	return string(l.Kind)
}

func atOnce(l *bucket.Limit) int64 {
	if l.Shadow {
		return admission.Unbounded
	}
	return l.Size
}

func unit(l *bucket.Limit) string {
	if l.Kind == bucket.Concurrency {
		return "-"
	}
	return l.Unit
}

// most writes a bound. Concurrency sets none for an interval, shadow limits none at all.
func most(n int64) string {
	if n == admission.Unbounded {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}
