package audit

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// Line is one line of an Log, as ParseLine reads it.
type Line struct {
	Record
	// Log is the id of the Log that wrote the line, and Seq the line's number.
	Log string
	Seq uint64
}

// ErrNotRecord is returned for a line that no Log wrote.
var ErrNotRecord = errors.New("not an audit record")

// lineJSON has the names of Record.attrs.
type lineJSON struct {
	Time         time.Time `json:"time"`
	Msg          string    `json:"msg"`
	Log          string    `json:"log"`
	Seq          uint64    `json:"seq"`
	Phase        Phase     `json:"phase"`
	RequestID    string    `json:"request_id"`
	Principal    string    `json:"principal"`
	Tenant       string    `json:"tenant"`
	Issuer       string    `json:"issuer"`
	Role         string    `json:"role"`
	Peer         string    `json:"peer"`
	Operation    string    `json:"operation"`
	SandboxID    string    `json:"sandbox_id"`
	ExecID       string    `json:"exec_id"`
	Objects      int       `json:"objects"`
	Object       int       `json:"object"`
	Path         string    `json:"path"`
	Destination  string    `json:"destination"`
	Target       string    `json:"target"`
	Address      string    `json:"address"`
	Program      string    `json:"program"`
	CommandHash  string    `json:"command_sha256"`
	CommandText  string    `json:"command"`
	Template     string    `json:"template"`
	Image        string    `json:"image"`
	Network      string    `json:"network"`
	MemoryBytes  int64     `json:"memory_bytes"`
	CPUMillis    int32     `json:"cpu_millis"`
	MaxProcesses int32     `json:"max_processes"`
	DiskBytes    int64     `json:"disk_bytes"`
	Code         string    `json:"code"`
	Reason       string    `json:"reason"`
	ExitReason   string    `json:"exit_reason"`
	ExitCode     *int32    `json:"exit_code"`
	Seconds      float64   `json:"duration_seconds"`
	Bytes        int64     `json:"bytes"`
	Suppressed   int64     `json:"suppressed"`
}

// ParseLine reads one line of an Log. The record's Time is when it was
// written. It ignores fields that it does not know, and returns ErrNotRecord for
// anything else.
func ParseLine(line []byte) (Line, error) {
	var j lineJSON
	if err := json.Unmarshal(line, &j); err != nil || j.Msg != "audit" || j.Seq == 0 {
		return Line{}, ErrNotRecord
	}
	return Line{Log: j.Log, Seq: j.Seq, Record: Record{
		Time: j.Time, Phase: j.Phase, RequestID: j.RequestID,
		Principal: j.Principal, Tenant: j.Tenant, Issuer: j.Issuer, Role: j.Role, Peer: j.Peer,
		Operation: j.Operation, SandboxID: j.SandboxID, ExecID: j.ExecID,
		Path: j.Path, Destination: j.Destination, Target: j.Target, Address: j.Address,
		Objects: j.Objects, Object: j.Object,
		Program: j.Program, CommandHash: j.CommandHash, CommandText: j.CommandText,
		Template: j.Template, Image: j.Image, Network: j.Network,
		Resources: providers.Resources{
			MemoryBytes: j.MemoryBytes, CPUMillis: j.CPUMillis, MaxProcesses: j.MaxProcesses, DiskBytes: j.DiskBytes,
		},
		Code: j.Code, Reason: j.Reason, ExitReason: j.ExitReason, ExitCode: j.ExitCode,
		Duration: time.Duration(j.Seconds * float64(time.Second)), Bytes: j.Bytes, Suppressed: j.Suppressed,
	}}, nil
}
