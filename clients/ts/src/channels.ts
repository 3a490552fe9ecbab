/** The connections of a client to its server. */

import { Client, type ClientOptions } from "@grpc/grpc-js";
import type { Connection } from "./options.js";

const OPTIONS: ClientOptions = {
  // A reply may be larger than gRPC's 4 MiB. The server rejects requests that are too
  // large, with a reason.
  "grpc.max_receive_message_length": 32 << 20,
  "grpc.max_send_message_length": -1,
  "grpc.keepalive_timeout_ms": 10_000,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 2_000,
  // Large enough that one stream fills a fast link, small enough to bound what
  // a reader that pauses holds in memory.
  "grpc-node.flow_control_window": 1 << 20,
};

/** Makes the connections, each of which connects with its first call. */
export function channels(connection: Connection): Client[] {
  const options = {
    ...OPTIONS,
    "grpc.keepalive_time_ms": connection.keepaliveMs,
    // Connections of one target are otherwise shared, over all clients.
    "grpc.use_local_subchannel_pool": 1,
    ...(connection.serverName === "" ? {} : { "grpc.ssl_target_name_override": connection.serverName }),
  };
  return Array.from(
    { length: connection.channels },
    () => new Client(connection.target, connection.credentials, options),
  );
}
