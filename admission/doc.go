// Package admission decides who may use a dependency: policies, and the gate that asks the limits by them.
//
// A Document is what a policy file says. It is checked as a whole (Validate), compiled per dependency and version (Policy)
// and kept in Redis (Store), where the scripts of package bucket see which version is in force. A Gate turns an Ask into
// what the limits are asked, follows the policy to its present version, answers by the policy's failure mode where the
// store does not, and tells the answer in the words of the API (Decision).
//
// Data goes one way: Ask -> Policy.compile -> bucket.Limiter -> Policy.decision -> Decision. A refusal is a Decision; an
// error means that the ask was wrong (*FieldError) or that nothing could be decided.
package admission
