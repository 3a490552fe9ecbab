package process

import (
	"slices"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func TestListKeepsNewestEndedCommands(t *testing.T) {
	ended := func(id string) *sandboxv1.Process {
		return &sandboxv1.Process{ExecId: id, Exited: &sandboxv1.Exited{}}
	}
	list := []*sandboxv1.Process{
		ended("a"), {ExecId: "runs"}, ended("b"),
		{ExecId: "child lives", Exited: &sandboxv1.Exited{}, LiveProcesses: 1}, ended("c"),
	}
	for most, want := range [][]string{
		{"runs", "child lives"}, {"runs", "child lives", "c"}, {"runs", "b", "child lives", "c"},
		{"a", "runs", "b", "child lives", "c"}, {"a", "runs", "b", "child lives", "c"},
	} {
		var got []string
		for _, p := range newest(slices.Clone(list), most) {
			got = append(got, p.GetExecId())
		}
		if !slices.Equal(got, want) {
			t.Errorf("at most %d: %v, want %v", most, got, want)
		}
	}
}
