package httpapi_test

import (
	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/internal/httpapi"
	"github.com/sluicehq/sluice/internal/telemetry"
)

// What is served is the gate, and what it tells the metrics fits them.
var (
	_ httpapi.Gate       = (*admission.Gate)(nil)
	_ httpapi.Catalog    = (*admission.Gate)(nil)
	_ admission.Recorder = (*telemetry.Metrics)(nil)
)
