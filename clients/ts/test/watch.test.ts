import { afterAll, beforeAll, describe, expect, it } from "vitest";
import {
  Client,
  InvalidRequestError,
  type SandboxEvent,
  UnavailableError,
  type WatchOptions,
} from "../src/index.js";
import { FakeServer } from "./fakeServer.js";

let fake: FakeServer;
let client: Client;

beforeAll(async () => {
  fake = await new FakeServer().start();
  client = new Client({ address: fake.address });
  await client.serverInfo();
});

afterAll(() => {
  client.close();
  fake.stop();
});

async function take(options: WatchOptions, count: number): Promise<SandboxEvent[]> {
  const got: SandboxEvent[] = [];
  for await (const event of client.watch(options)) {
    got.push(event);
    if (got.length === count) break;
  }
  return got;
}

describe("watch", () => {
  it.each([
    [undefined, 1],
    ["10", 11],
  ])("continues after each break, from %s", async (cursor, first) => {
    const options: WatchOptions = { labels: { k: "v" }, types: ["CREATED"] };
    if (cursor !== undefined) options.cursor = cursor;
    const got = await take(options, 6);
    expect(got.map((e) => e.cursor)).toEqual(Array.from({ length: 6 }, (_, i) => String(first + i)));
    expect(got[0]).toMatchObject({
      eventId: `e${first}`,
      type: "CREATED",
      reason: "UNSPECIFIED",
      state: "UNSPECIFIED",
      labels: { k: "v" },
    });
  });

  it("ends when the server refuses it", async () => {
    await expect(take({ cursor: "x" }, 1)).rejects.toBeInstanceOf(InvalidRequestError);
    const types = ["NOTHING"] as unknown as NonNullable<WatchOptions["types"]>;
    await expect(take({ types }, 1)).rejects.toBeInstanceOf(InvalidRequestError);
  });

  it("ends without a server", async () => {
    const away = new Client({ address: "127.0.0.1:1" });
    const events = away.watch();
    await expect(events.next()).rejects.toBeInstanceOf(UnavailableError);
    away.close();
  });
});
