// Package apitest holds answers of the API against its description. Tests use it, in process or end to end.
package apitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/sluicehq/sluice/api"
)

// Validator knows api/openapi.yaml.
type Validator struct {
	doc    *openapi3.T
	router routers.Router
}

// New loads the description; an error says what is wrong with it, its examples included.
func New() (*Validator, error) {
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI())
	if err != nil {
		return nil, fmt.Errorf("load the description: %w", err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, fmt.Errorf("validate the description: %w", err)
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, fmt.Errorf("route the description: %w", err)
	}
	return &Validator{doc: doc, router: router}, nil
}

// Doc is the description. Do not change it.
func (v *Validator) Doc() *openapi3.T { return v.doc }

// Check reports how an answer differs from what is described: an undescribed status, header or body. Answers of paths and
// methods that are not described must be problems with status 404 or 405.
func (v *Validator) Check(r *http.Request, status int, header http.Header, body []byte) error {
	method := r.Method
	if method == http.MethodHead { // is GET without a body
		r = r.Clone(r.Context())
		r.Method = http.MethodGet
	}
	if err := problemStatus(status, header, body, method); err != nil {
		return err
	}
	route, params, err := v.router.FindRoute(r)
	if err != nil {
		return v.unrouted(err, status, header, body)
	}
	in := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route},
		Status:                 status,
		Header:                 header,
		Options: &openapi3filter.Options{
			IncludeResponseStatus: true, MultiError: true, ExcludeResponseBody: method == http.MethodHead,
		},
	}
	in.SetBodyBytes(body)
	if err := openapi3filter.ValidateResponse(r.Context(), in); err != nil {
		return fmt.Errorf("%s %s answered %d, which is not as described: %w; body: %s", method, r.URL.Path, status, err, body)
	}
	return nil
}

// problemStatus makes sure that a problem says the real status, RFC 9457 section 3.1.3.
func problemStatus(status int, header http.Header, body []byte, method string) error {
	kind, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	if kind != "application/problem+json" || method == http.MethodHead {
		return nil
	}
	var p struct{ Status int }
	if err := json.Unmarshal(body, &p); err != nil {
		return fmt.Errorf("a problem that is not JSON: %w", err)
	}
	if p.Status != status {
		return fmt.Errorf("the problem says %d, the status is %d", p.Status, status)
	}
	return nil
}

func (v *Validator) unrouted(why error, status int, header http.Header, body []byte) error {
	want := http.StatusNotFound
	if errors.Is(why, routers.ErrMethodNotAllowed) {
		want = http.StatusMethodNotAllowed
		if header.Get("Allow") == "" {
			return errors.New("405 without Allow")
		}
	}
	if status != want || header.Get("Content-Type") != "application/problem+json" {
		return fmt.Errorf("not described (%w), and answered with %d, not with the problem %d", why, status, want)
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil && len(body) > 0 {
		return fmt.Errorf("a problem that is not JSON: %w", err)
	}
	if len(body) == 0 {
		return nil // HEAD
	}
	err := v.doc.Components.Schemas["Problem"].Value.VisitJSON(value, openapi3.EnableJSONSchema2020())
	if err != nil {
		return fmt.Errorf("problem: %w", err)
	}
	return nil
}

// Transport checks every answer that comes through next, whose bodies it reads to the end. What is not as described
// becomes an error of the round trip.
func (v *Validator) Transport(next http.RoundTripper) http.RoundTripper {
	return &transport{v: v, next: next}
}

type transport struct {
	v    *Validator
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err //nolint:wrapcheck // a transport passes errors on
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if err := t.v.Check(r, resp.StatusCode, resp.Header, body); err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}
