package httpapi

import (
	"net/http"
	"slices"
	"testing"

	"github.com/gorilla/mux"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/internal/httpapi/apitest"
)

// What is served and what api/openapi.yaml describes are the same, both ways.
func TestRoutes_areThoseOfOpenAPI(t *testing.T) {
	t.Parallel()
	var served []string
	err := NewHandler(Config{}).router.Walk(func(route *mux.Route, _ *mux.Router, _ []*mux.Route) error {
		path, err := route.GetPathTemplate()
		require.NoError(t, err)
		methods, err := route.GetMethods()
		require.NoError(t, err)
		for _, m := range methods {
			if m != http.MethodHead { // of every GET; the file says so once
				served = append(served, m+" "+path)
			}
		}
		return nil
	})
	require.NoError(t, err)

	v, err := apitest.New()
	require.NoError(t, err)
	var described []string
	for path, item := range v.Doc().Paths.Map() {
		for method := range item.Operations() {
			described = append(described, method+" "+path)
		}
	}
	slices.Sort(served)
	slices.Sort(described)
	require.Equal(t, described, served)
}

// Every reason of the API's closed set has its own row, and the enum of the file is that set.
func TestTable_isClosed(t *testing.T) {
	t.Parallel()
	v, err := apitest.New()
	require.NoError(t, err)
	rows := table()
	var reasons []string
	for i := range rows {
		r := &rows[i]
		require.NotZero(t, r.status)
		require.NotEmpty(t, r.title())
		require.Equal(t, r.later, r.kind != typeBlank, "what may come again is one of the registered types")
		require.Equal(t, r.later, r.status == 429 || r.status == 503)
		if r.reason != admission.ReasonNone {
			reasons = append(reasons, string(r.reason))
			require.Same(t, r, forReason(rows, r.reason))
			require.NotEmpty(t, r.detail)
		}
	}
	var described []string
	for _, e := range v.Doc().Components.Schemas["Reason"].Value.Enum {
		described = append(described, e.(string))
	}
	require.ElementsMatch(t, described, reasons)
	for _, reason := range []admission.Reason{
		admission.ReasonLimit, admission.ReasonQuota, admission.ReasonCostExceeds, admission.ReasonMismatch,
		admission.ReasonStoreUnavailable, admission.ReasonOverloaded, admission.ReasonShuttingDown, admission.ReasonBatch,
		admission.ReasonInvalid, admission.ReasonUnknownDependency, admission.ReasonNotCancellable,
	} {
		require.Contains(t, reasons, string(reason))
	}
	require.Equal(t, 500, forReason(rows, "unheard_of").status)
	require.Equal(t, 500, forReason(rows, admission.ReasonNone).status)
}
