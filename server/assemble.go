package server

import (
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/sandgate/sandgate/agent/protocol"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/admission"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/events"
	"github.com/sandgate/sandgate/server/exec"
	"github.com/sandgate/sandgate/server/forward"
	"github.com/sandgate/sandgate/server/inprocess"
	"github.com/sandgate/sandgate/server/lifetime"
	"github.com/sandgate/sandgate/server/limit"
	"github.com/sandgate/sandgate/server/metrics"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/server/quota"
	"github.com/sandgate/sandgate/server/transfer"
	"github.com/sandgate/sandgate/server/webhook"
)

// assemble makes the parts of the server and connects them. No call runs yet.
func (s *Server) assemble() {
	s.metrics = metrics.New(s.cfg.Version, s.described.Name)
	s.audit = &audit.Recorder{
		Sink: s.cfg.Audit, Required: s.cfg.AuditRequired, CommandText: s.cfg.AuditCommandText, Log: s.log,
		OnFailure: s.metrics.AuditFailures.Inc,
	}
	s.documents = events.Documents(s.cfg.Provider)
	s.journal = events.NewJournal(s.documents, s.log, s.metrics.EventAppended)
	s.webhooks = webhook.New(webhook.Config{
		Journal: s.journal, Change: s.documents, Log: s.log, OnAttempt: s.metrics.WebhookAttempted,
		OnDrop: s.metrics.WebhookDropped, OnStop: s.metrics.WebhookStopped, FirstRetry: time.Second, LastRetry: 5 * time.Minute,
	})
	s.webhooks.Configure(s.cfg.Webhooks)
	s.agents = agentconn.New(agentconn.Config{
		Provider: s.cfg.Provider, Version: s.cfg.Version, ProtocolMinor: s.cfg.protocolMinor, MaxRequest: s.cfg.Limits.MaxMessageBytes,
		Hello: s.cfg.Timing.Hello, Idle: s.cfg.Timing.AgentIdle, OnDial: s.metrics.Dialled, Stats: s.tracing.AgentCalls(),
	})
	s.metrics.Count(metrics.Source{
		Provider: s.cfg.Provider, Agents: s.agents, Log: s.log, Closing: s.leaving.Load,
		Templates: func() []*policy.Template { return s.rules().policy.Templates() },
	})
	s.metrics.ShowEnforcement(s.enforcement)
	s.metrics.CountQuotas(s.book, s.streams)
	s.metrics.WatchRevocations(s.cfg.Revocations)
	s.metrics.WatchClock(s.clock.Leaps)
	s.carrier = s.newCarrier()
	s.activity = lifetime.NewActivity(s.cfg.Provider, s.log)
	s.reaper = lifetime.NewReaper(lifetime.Config{
		Provider: s.cfg.Provider, Agents: s.agents, Clock: s.clock, Log: s.log, Expired: s.expired, Random: s.cfg.random,
		OnDelete:  func(info providers.Info) { s.book.Forget(info.Name, info.Incarnation) },
		OnExpire:  s.sandboxExpired,
		OnFailure: s.metrics.ReapFailures.Inc,
	})
	s.router = agentcall.New(agentcall.Config{
		Agents: s.agents, Activity: s.activity, Clock: s.clock, Expired: s.expired, Reattach: s.cfg.Timing.Reattach,
		Rules: s.agentRules, Trusted: s.trusted, Stopping: s.isStopping,
	})
	s.exec = exec.New(exec.Config{
		Router: s.router, Provider: s.cfg.Provider, Metrics: s.metrics, Tracing: s.tracing, SlowReader: s.cfg.Timing.SlowReader, Log: s.log,
	})
	s.transfer = transfer.New(s.router, s.audit)
	s.uploads = limit.NewShared(s.cfg.Limits.MaxUploads, s.cfg.Authenticator != nil)
	s.forward = forward.New(s.router, s.agents, s.audit, limit.NewShared(s.cfg.Limits.MaxForwards, s.cfg.Authenticator != nil))
	s.gate = admission.New(s.cfg.Authenticator, s.operation, quota.NewRequests(s.cfg.Limits.MaxRequestBytes), s.cfg.Limits.MaxConnections)
}

// register makes the gRPC server and its services.
func (s *Server) register() {
	unary, stream := s.chains()
	unaryChain, streamChain := inprocess.ChainUnary(unary), inprocess.ChainStream(stream)
	opts := append(s.gate.Options(),
		grpc.ForceServerCodecV2(s.codec),
		grpc.UnaryInterceptor(unaryChain),
		grpc.StreamInterceptor(streamChain),
		grpc.UnknownServiceHandler(unknownMethod),
		grpc.MaxRecvMsgSize(protocol.Received(s.cfg.Limits.MaxMessageBytes)),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.StaticStreamWindowSize(agentconn.StreamWindow),
		grpc.StaticConnWindowSize(agentconn.ConnWindow),
		grpc.WriteBufferSize(agentconn.ReadBuffer),
		grpc.ReadBufferSize(agentconn.ReadBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: s.cfg.Timing.Keepalive, Timeout: s.cfg.Timing.KeepaliveTimeout,
			MaxConnectionAge: s.cfg.Timing.ConnectionAge}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
	opts = append(opts, s.tracing.Calls()...)
	if s.cfg.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(s.cfg.TLS)))
	}
	s.grpc = grpc.NewServer(opts...)
	desc := s.beforeRead(s.router.Handlers(sandboxv1.SandboxService_ServiceDesc))
	s.grpc.RegisterService(desc, s)
	s.inProcess = &inprocess.Server{Desc: desc, Impl: s, Codec: s.codec, Unary: unaryChain, Stream: streamChain, Vouch: s.gate.Vouch}
	s.grpc.RegisterService(s.beforeRead(healthv1.Health_ServiceDesc), s.health)
	reflection.Register(s.grpc)
	s.services = s.grpc.GetServiceInfo()
	s.preview = s.newPreview()
	s.health.SetServingStatus(sandboxv1.SandboxService_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
}

// start begins the background work.
func (s *Server) start() {
	s.work.Go(func() { s.background("maintain", s.maintain) })
	s.work.Go(func() { s.background("lead", s.lead) })
	if s.allReap() {
		s.work.Go(func() { s.background("reap", s.reap) })
	}
	s.work.Go(func() { s.background("write events", s.keepJournal) })
	if slices.Contains(s.described.Capabilities, providers.CapabilityNetworkProxy) {
		s.work.Go(func() { s.background("hold networks", s.holdNetworks) })
	}
	s.work.Go(func() { s.background("watch the provider", s.watchProvider) })
	if s.cfg.Authenticator != nil {
		s.work.Go(func() { s.background("recheck", s.recheck) })
	}
	s.work.Go(func() { s.background("count", s.count) })
}
