package main

import (
	"log/slog"
	"maps"
	"slices"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/internal/config"
)

// offered finds what a policy may say and this program cannot do, where leaving it out would not be safe.
func offered(doc *admission.Document) []admission.Problem {
	var problems []admission.Problem
	for _, name := range slices.Sorted(maps.Keys(doc.Dependencies)) {
		store := doc.Dependencies[name].Store
		if store != nil && store.OnFailure == admission.FailLocal {
			problems = append(problems, admission.Problem{
				Path:    admission.Path("dependencies").Key(name).Key("store").Key("on_failure"),
				Message: "is local, which comes with the client library and is not offered by this version; allowed are closed, open",
			})
		}
	}
	return problems
}

// policyFile is a policy file that was read, and is read again when it changes.
type policyFile struct {
	path    string
	doc     *admission.Document
	watcher *config.Watcher // nil: it cannot change
}

// openPolicies reads the file at the path.
func openPolicies(path string) (*policyFile, error) {
	watcher := config.NewWatcher(path, offered)
	doc, err := config.LoadPolicies(path, offered)
	if err != nil {
		return nil, err
	}
	return &policyFile{path: path, doc: doc, watcher: watcher}, nil
}

// unenforced names what the document says and this version does not act on, by dependency; "" stands for the file.
func unenforced(doc *admission.Document) (map[string][]string, error) {
	parts := map[string][]string{}
	if all := doc.NotInForce(); len(all) > 0 {
		parts[""] = all
	}
	for name, d := range doc.Dependencies {
		p, err := admission.Compile(name, 0, d)
		if err != nil {
			return nil, err
		}
		if all := p.NotInForce(); len(all) > 0 {
			parts[name] = all
		}
	}
	return parts, nil
}

// warnUnenforced logs what nobody should rely on.
func warnUnenforced(log *slog.Logger, doc *admission.Document) error {
	parts, err := unenforced(doc)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if name == "" {
			log.Warn("parts of the policy file are not in force in this version", slog.Any("parts", parts[name]))
			continue
		}
		log.Warn("parts of the policy are not in force in this version",
			slog.String("dependency", name), slog.Any("parts", parts[name]))
	}
	return nil
}
