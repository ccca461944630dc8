// Package config reads what people configure: the policy file, strictly and with every mistake at its line and column,
// and the settings of the programs from flags and environment. Nothing else in the module reads either.
package config
