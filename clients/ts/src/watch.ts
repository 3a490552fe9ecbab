/** Events of sandboxes, and the stream of them that is resumed. */

import type { CallOptions } from "./call.js";
import { ConnectionLostError, InvalidRequestError } from "./errors.js";
import {
  EventReason,
  type SandboxEvent as Message,
  EventType as Type,
} from "./gen/sandbox/v1/sandbox_events_pb.js";
import { SandboxService } from "./gen/sandbox/v1/sandbox_service_pb.js";
import { isBreak, Retry } from "./retry.js";
import type { Transport } from "./transport.js";
import { date, type State, stateName } from "./values.js";

/** What happened to a sandbox. RESYNC: events are missing, list the sandboxes. */
export type EventType = "UNSPECIFIED" | "CREATED" | "STATE_CHANGED" | "EXPIRING" | "ENDED" | "RESYNC";

/** Why it happened. */
export type EventReasonName = "UNSPECIFIED" | "REQUESTED" | "TTL" | "IDLE_TTL" | "OUT_OF_MEMORY" | "REPLACED";

/** Which events are meant. */
export interface WatchOptions {
  /** {@link SandboxEvent.cursor} of the last event that was handled, also by another client. Default: from now on. */
  cursor?: string;
  /** Only sandboxes from one of these templates. Default: all. */
  templates?: string[];
  /** Only sandboxes that have all these labels. */
  labels?: Record<string, string>;
  /** Only events of these types, and RESYNC. Default: all. */
  types?: Exclude<EventType, "UNSPECIFIED">[];
}

/** A change of one sandbox. It may come more than once, with the same id. */
export interface SandboxEvent {
  eventId: string;
  type: EventType;
  /** Where {@link Client.watch} continues after this event. */
  cursor: string;
  time: Date | undefined;
  /** Empty with RESYNC. */
  sandboxId: string;
  incarnation: string;
  template: string;
  labels: Record<string, string>;
  /** The state after the event; "UNSPECIFIED" once it has ended. */
  state: State;
  reason: EventReasonName;
  /** The caller who asked for it, with REQUESTED. */
  principal: string;
  message: string;
  /** With EXPIRING: when the sandbox expires without further activity. */
  expireTime: Date | undefined;
}

/** Yields events over any number of broken connections, until the caller leaves the iteration. */
export async function* watch(
  transport: Transport,
  options: WatchOptions,
  call: CallOptions,
): AsyncGenerator<SandboxEvent, void, undefined> {
  const { templates = [], labels = {}, types = [] } = options;
  const request = { cursor: options.cursor ?? "", templates, labels, types: types.map(typeValue) };
  const retry = new Retry(() => transport.retryWindow(call));
  for (;;) {
    try {
      for await (const { cursor, event } of transport.serverStream(
        SandboxService.method.watchSandboxes,
        request,
        call,
      )) {
        retry.progress();
        request.cursor = cursor;
        if (event !== undefined) yield sandboxEvent(event, cursor);
      }
      throw new ConnectionLostError("the stream ended early", { code: "UNAVAILABLE" });
    } catch (error) {
      if (!isBreak(error) || !(await transport.again(retry, error, call.signal))) throw error;
    }
  }
}

function typeValue(name: EventType): Type {
  const value = Type[name];
  if (value === undefined)
    throw new InvalidRequestError(`types: "${name}" is not a type of events`, { code: "INVALID_ARGUMENT" });
  return value;
}

function sandboxEvent(e: Message, cursor: string): SandboxEvent {
  return {
    eventId: e.eventId,
    type: (Type[e.type] ?? "UNSPECIFIED") as EventType,
    cursor,
    time: date(e.time),
    sandboxId: e.sandboxId,
    incarnation: e.incarnation,
    template: e.template,
    labels: { ...e.labels },
    state: stateName(e.state),
    reason: (EventReason[e.reason] ?? "UNSPECIFIED") as EventReasonName,
    principal: e.principal,
    message: e.message,
    expireTime: date(e.expireTime),
  };
}
