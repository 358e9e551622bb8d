/** Runs against the server whose address is in RECSYS_URL. */
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import { Client, ServerError, UnreachableError } from "./client.js";

const url = process.env["RECSYS_URL"] ?? "http://127.0.0.1:8000";
const client = new Client(url, { timeoutMs: 20_000 });

test("a click changes the next list", async () => {
  const first = await client.recommend({ user_id: "typescript", k: 5 });
  assert.equal(first.items.length, 5);
  const clicked = first.items[0]!.item_id;
  const event = {
    user_id: "typescript",
    item_id: clicked,
    event_type: "click",
    request_id: first.request_id,
    slot: 1,
  } as const;
  assert.deepEqual(await client.event(event), { accepted: 1, duplicates: 0 });
  const after = await client.recommend({ user_id: "typescript", k: 5 });
  assert.ok(after.items.every((item) => item.item_id !== clicked));
});

test("an event is stored once", async () => {
  const event = { event_id: "ts-1", user_id: "u", item_id: "item-1", event_type: "view" } as const;
  assert.deepEqual(await client.events([event, event]), { accepted: 1, duplicates: 1 });
});

test("a hidden item is gone until it is shown again", async () => {
  const first = (await client.recommend({ k: 1 })).items[0]!.item_id;
  await client.hide(first);
  assert.notEqual((await client.recommend({ k: 1 })).items[0]!.item_id, first);
  await client.show(first);
  assert.equal((await client.recommend({ k: 1 })).items[0]!.item_id, first);
});

test("lookups", async () => {
  assert.equal((await client.search("title 3", 2)).items.length, 2);
  assert.equal((await client.similar("item-3", 4)).items.length, 4);
  assert.ok((await client.searchList({ query: "title 3", k: 2 })).items.length > 0);
  assert.equal((await client.say("talker", "more evens")).topics[0]!.words, "evens");
  assert.equal((await client.topics("talker")).topics.length, 1);
  assert.equal((await client.unsay("talker", "evens")).topics.length, 0);
  assert.ok((await client.forget("nobody")).removed.events === 0);
});

test("a refusal says what is wrong", async () => {
  await assert.rejects(client.recommend({ k: 0 }), (error: unknown) => {
    assert.ok(error instanceof ServerError);
    assert.equal(error.status, 422);
    assert.equal(error.code, "invalid_request");
    return true;
  });
  await assert.rejects(client.explain("0".repeat(32)), ServerError);
});

test("a busy server is tried again, a missing one is said", async () => {
  let attempts = 0;
  const busy = createServer((_, response) => {
    attempts += 1;
    response.statusCode = attempts < 3 ? 503 : 200;
    response.end(attempts < 3 ? "{}" : JSON.stringify({ accepted: 1, duplicates: 0 }));
  });
  await new Promise<void>((resolve) => busy.listen(0, "127.0.0.1", resolve));
  const address = busy.address();
  assert.ok(address !== null && typeof address !== "string");
  const own = new Client(`http://127.0.0.1:${address.port}`);
  await own.event({ user_id: "u", item_id: "i", event_type: "view" });
  assert.equal(attempts, 3);
  busy.closeAllConnections();
  await new Promise((resolve) => busy.close(resolve));
  await assert.rejects(own.recommend({}), UnreachableError);
});
