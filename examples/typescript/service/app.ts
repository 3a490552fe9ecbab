/**
 * A chat service: one deep agent, one sandbox per conversation, its work streamed.
 *
 *     bin/sandgate serve &
 *     npm run service
 *     curl -N localhost:3000/chat/conversation-1 -H 'content-type: application/json' \
 *       -d '{"message": "for i in 1 2 3; do echo $i; sleep 1; done"}'
 *
 * Nothing that a sandbox needs is kept in the process. Any number of replicas serve
 * any conversation, in any order; they only have to share a checkpointer in place of
 * the one in memory.
 */

import type { BaseMessage } from "@langchain/core/messages";
import { MemorySaver } from "@langchain/langgraph";
import express from "express";
import { SandgateManager } from "sandgate/deepagents";
import { chosenModel } from "../commands.js";

const manager = new SandgateManager({
  ttlIdleSeconds: 1800,
  defaultLabels: { app: "chat-express" },
  skipCleanup: true,
  recreate: true,
});
const agent = await manager.createAgent(chosenModel(), { checkpointer: new MemorySaver() });

const app = express();
app.use(express.json());

/** Answers with a line of JSON for each piece of output, and a last one with the reply. */
app.post("/chat/:threadId", async (request, response) => {
  const gone = new AbortController();
  response.on("close", () => gone.abort()); // a caller that leaves ends its command
  response.type("application/x-ndjson");
  const tell = (line: object) => response.write(`${JSON.stringify(line)}\n`);
  try {
    const steps = await agent.stream(
      { messages: [{ role: "user", content: String(request.body.message) }] },
      {
        configurable: { thread_id: request.params.threadId },
        streamMode: ["tools", "values"],
        signal: gone.signal,
      },
    );
    let state: { messages?: BaseMessage[]; sandboxId?: string } = {};
    for await (const [mode, chunk] of steps as AsyncIterable<[string, Record<string, unknown>]>) {
      if (mode === "values") state = chunk;
      else if (chunk["event"] === "on_tool_event") tell({ output: chunk["data"] });
    }
    tell({ reply: state.messages?.at(-1)?.text ?? "", sandboxId: state.sandboxId ?? "" });
  } catch (error) {
    tell({ error: String(error) });
  }
  response.end();
});

/** Lists the sandboxes of all conversations, whichever replica made them. */
app.get("/sandboxes", async (_request, response) => {
  const { sandboxes } = await manager.provider.list({ labels: { app: "chat-express" } });
  response.json(sandboxes.map(({ id, status }) => ({ id, status })));
});

/** Ends a conversation's sandbox. */
app.delete("/sandboxes/:id", async (request, response) => {
  await manager.provider.delete(request.params.id);
  response.json(null);
});

const server = app.listen(Number(process.env["PORT"] ?? 3000), "127.0.0.1", () => {
  console.log("listening", server.address());
});

// Sandboxes stay, for the next replica.
process.once("SIGTERM", () => {
  server.close(() => void manager.shutdown());
  server.closeIdleConnections();
});
