// Package providertest is the definition of a provider: a suite of cases, each
// named after the contract that it holds a provider to.
//
// # How to add a provider
//
// Write the package, and one test of about fifteen lines:
//
//	func TestConformance(t *testing.T) {
//		state := t.TempDir()
//		providertest.Run(t, providertest.Harness{
//			Open: func(t *testing.T) providers.Provider {
//				p, err := New(t.Context(), Config{StateDir: state})
//				if err != nil {
//					t.Fatal(err)
//				}
//				return p
//			},
//			Spec: func() providers.Spec {
//				return providers.Spec{Network: providers.NetworkNone, Resources: limits}
//			},
//		})
//	}
//
// Then add one case to the switch in cmd/sandgate and one row to the table of
// providers in the documentation. If it takes more, the interface leaked: say
// so rather than work around it.
//
// Run calls Open for every provider it needs, and more than once for the same
// substrate, because a provider must find what another one made. A case that a
// provider cannot pass by its nature is declared in Harness.Except, by name and
// with the reason; a name that is no case's is an error.
//
// The cases that only use a sandbox, and do not care who made it, also run
// through a server: see RunSandbox.
package providertest
