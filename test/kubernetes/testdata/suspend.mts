/** Suspends and resumes a sandbox through the TypeScript client. */

import assert from "node:assert/strict";
import { Client, SandboxNotActiveError } from "../../../clients/ts/src/index.js";

using client = new Client();
const box = await client.create({ template: "durable" });
try {
  const before = await box.info();
  assert.equal(before.state, "ACTIVE");
  await box.execute("echo kept >/data/file; echo lost >/workspace/file");
  let execId = "";
  for await (const event of box.executeStream("sleep 600", { detach: true })) {
    if (event.type !== "started") continue;
    execId = event.execId;
    break;
  }
  assert.notEqual(execId, "");

  assert.equal((await box.suspend()).state, "SUSPENDED");
  assert.equal((await box.suspend()).state, "SUSPENDED");
  const suspended: string[] = [];
  for await (const { id } of client.list({ states: ["SUSPENDED"] })) suspended.push(id);
  assert.ok(suspended.includes(box.id), `suspended: ${suspended}`);
  await assert.rejects(box.execute("true"), (error) => {
    assert.ok(error instanceof SandboxNotActiveError, String(error));
    assert.match(error.message, /resume/);
    return true;
  });

  const after = await box.resume();
  assert.equal(after.state, "ACTIVE");
  assert.notEqual(after.incarnation, before.incarnation);
  assert.equal(box.incarnation, after.incarnation);
  const said = await box.execute("cat /data/file; ls /workspace");
  assert.equal(said.stdout, "kept\n");
  const running = await box.processes();
  assert.ok(!running.some((process) => process.execId === execId));
} finally {
  await box.delete();
}
console.log("suspended and resumed");
