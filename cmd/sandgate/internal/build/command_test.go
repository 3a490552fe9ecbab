package build

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBuildArguments(t *testing.T) {
	t.Setenv("FROM_ENVIRONMENT", "value")
	if err := os.Unsetenv("SANDGATE_TEST_UNSET"); err != nil {
		t.Fatal(err)
	}
	got, err := arguments([]string{"A=1", "B=x=y", "C=", "FROM_ENVIRONMENT", "SANDGATE_TEST_UNSET"})
	want := map[string]string{"A": "1", "B": "x=y", "C": "", "FROM_ENVIRONMENT": "value"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := arguments([]string{"=1"}); err == nil {
		t.Error("a value without a name was accepted")
	}
}

func TestPrintedNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		made made
		want string
	}{
		{made{Image: "i"}, "i\n"},
		{made{Image: "i", Archive: "a"}, "a\n"},
		{made{Image: "i", Pushed: "p"}, "p\n"},
		{made{Image: "i", Archive: "a", Pushed: "p"}, "a\np\n"},
	} {
		var out bytes.Buffer
		if err := c.made.print(&out, false); err != nil || out.String() != c.want {
			t.Errorf("%+v prints %q, %v", c.made, out.String(), err)
		}
	}
}

// Mistakes are found before a daemon is needed, or name the daemon.
func TestMistakesOfTheCommandLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	away := "unix://" + filepath.Join(dir, "docker.sock")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--build-arg", "=x"}, "--build-arg"},
		{[]string{"--tag", "Not a name"}, "--tag"},
		{[]string{"--docker-host", "nonsense"}, "address of the Docker daemon"},
		{[]string{"--docker-host", away, dir}, away},
		{[]string{"--platform", "linux/arm64"}, "--buildkit-host"},
		{[]string{"--buildkit-host", "unix:///none", "--tag", "a", "--push", "b"}, "--tag"},
	} {
		cmd := NewCommand(dir)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append([]string{"--buildkit-host="}, c.args...))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.args, err)
		}
	}
}
