/**
 * Client of a recsys server, for browsers and Node 18+.
 *
 *     const client = new Client("http://127.0.0.1:8000");
 *     const list = await client.recommend({ user_id: "42", k: 10 });
 *     await client.event({ user_id: "42", item_id: list.items[0]!.item_id, event_type: "click",
 *                          request_id: list.request_id, slot: 1 });
 *
 * Every call may be sent again: lists and lookups change nothing, events are stored once by their
 * id, and hiding, showing and forgetting end in the same state however often they arrive.
 */
import type { components } from "./schema.js";

type Schemas = components["schemas"];
/** A type with its fields that have a default made optional, as a client sends it. */
type Sent<T> = Partial<T>;

export type Request = Sent<Schemas["Request"]>;
export type SearchRequest = Sent<Schemas["SearchRequest"]> & { query: string };
export type Reply = Schemas["Reply"];
export type Explanation = Schemas["Explanation"];
export type EventsReply = Schemas["EventsReply"];
export type ItemsReply = Schemas["ItemsReply"];
export type ItemsChanged = Schemas["ItemsChanged"];
export type TopicsReply = Schemas["TopicsReply"];
export type ForgottenReply = Schemas["ForgottenReply"];
type SentEvent = Schemas["SentEvent"];
/** An event; one without an id gets one. */
export type Event = Sent<SentEvent> & Pick<SentEvent, "user_id" | "item_id" | "event_type">;

/** A reply with an error: `code` is for programs, `message` says what is allowed and what to do. */
export class ServerError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(`${status} ${code}: ${message}`);
    this.name = "ServerError";
  }
}

/** No reply arrived, however often the request was sent. */
export class UnreachableError extends Error {}

export interface Options {
  /** Of `recsys keys add`; leave it out for a server without keys. */
  key?: string;
  /** Milliseconds that a call may take, all attempts together. */
  timeoutMs?: number;
  /** How often a call is sent again where the server is busy or away. */
  retries?: number;
}

const BUSY = new Set([429, 502, 503, 504]);
const MAX_EVENTS = 1000;

export class Client {
  private readonly url: string;
  private readonly headers: Record<string, string>;
  private readonly timeoutMs: number;
  private readonly retries: number;

  constructor(url: string, options: Options = {}) {
    this.url = url.replace(/\/$/, "");
    this.headers = options.key === undefined ? {} : { authorization: `Bearer ${options.key}` };
    this.timeoutMs = options.timeoutMs ?? 2000;
    this.retries = options.retries ?? 3;
  }

  /** Make a list. */
  recommend(request: Request): Promise<Reply> {
    return this.send("POST", "/v1/recommend", request);
  }

  /** List what a text finds, in the order that suits a user. */
  searchList(request: SearchRequest): Promise<Reply> {
    return this.send("POST", "/v1/search", request);
  }

  /** List items like one item. */
  similar(itemId: string, k = 20): Promise<Reply> {
    return this.send("GET", `/v1/similar/${encodeURIComponent(itemId)}?k=${k}`);
  }

  /** Find items by title. */
  search(query: string, k = 10): Promise<ItemsReply> {
    return this.send("GET", `/v1/search?${new URLSearchParams({ q: query, k: String(k) })}`);
  }

  /** Say why a list is as it is, and why an item is not in it. */
  explain(requestId: string, itemId?: string): Promise<Explanation> {
    const more = itemId === undefined ? "" : `?${new URLSearchParams({ item_id: itemId })}`;
    return this.send("GET", `/v1/explain/${encodeURIComponent(requestId)}${more}`);
  }

  /** Store one event. */
  event(event: Event): Promise<EventsReply> {
    return this.events([event]);
  }

  /** Store events; in as many requests as they need. */
  async events(events: Event[]): Promise<EventsReply> {
    const whole = events.map((one) => ({ event_id: crypto.randomUUID(), ...one }));
    const total = { accepted: 0, duplicates: 0 };
    for (let first = 0; first < whole.length; first += MAX_EVENTS) {
      const part = whole.slice(first, first + MAX_EVENTS);
      const reply = await this.send<EventsReply>("POST", "/v1/events", { events: part });
      total.accepted += reply.accepted;
      total.duplicates += reply.duplicates;
    }
    return total;
  }

  /** Show items on no surface, from now on. */
  hide(...itemIds: string[]): Promise<ItemsChanged> {
    return this.send("POST", "/v1/items", {
      items: itemIds.map((item_id) => ({ item_id, hidden: true })),
    });
  }

  /** Undo `hide`. */
  show(...itemIds: string[]): Promise<ItemsChanged> {
    return this.send("POST", "/v1/items", {
      items: itemIds.map((item_id) => ({ item_id, reset: true })),
    });
  }

  /** Keep what a user wants more or less of, in plain words, for every list from now on. */
  say(userId: string, wish: string): Promise<TopicsReply> {
    return this.send("PUT", `/v1/users/${encodeURIComponent(userId)}/topics`, { wish });
  }

  /** List what a user wants more and less of, as said and as inferred. */
  topics(userId: string): Promise<TopicsReply> {
    return this.send("GET", `/v1/users/${encodeURIComponent(userId)}/topics`);
  }

  /** Delete the topic of these words that a user said, or all. */
  unsay(userId: string, words?: string): Promise<TopicsReply> {
    const more = words === undefined ? "" : `?${new URLSearchParams({ words })}`;
    return this.send("DELETE", `/v1/users/${encodeURIComponent(userId)}/topics${more}`);
  }

  /** Forget a user. */
  forget(userId: string): Promise<ForgottenReply> {
    return this.send("DELETE", `/v1/users/${encodeURIComponent(userId)}`);
  }

  private async send<T>(method: string, path: string, body?: unknown): Promise<T> {
    const end = Date.now() + this.timeoutMs;
    let pause = 50;
    for (let attempt = 0; ; attempt++) {
      const [response, text, failure] = await this.attempt(method, path, body, end - Date.now());
      if (response !== undefined && !BUSY.has(response.status)) {
        return read<T>(response, text);
      }
      const named = 1000 * Number(response?.headers.get("retry-after") ?? 0);
      const wait = Math.max(pause * (0.5 + Math.random()), named);
      pause = Math.min(2 * pause, 2000);
      if (attempt >= this.retries || Date.now() + wait >= end) {
        if (response !== undefined) {
          return read<T>(response, text);
        }
        throw new UnreachableError(`no reply from ${this.url}${path}: ${failure}`);
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  private async attempt(
    method: string,
    path: string,
    body: unknown,
    leftMs: number,
  ): Promise<[Response | undefined, string, unknown]> {
    const sent: RequestInit = {
      method,
      headers:
        body === undefined ? this.headers : { ...this.headers, "content-type": "application/json" },
      signal: AbortSignal.timeout(Math.max(1, leftMs)),
    };
    try {
      const response = await fetch(
        this.url + path,
        body === undefined ? sent : { ...sent, body: JSON.stringify(body) },
      );
      return [response, await response.text(), undefined];
    } catch (failure) {
      return [undefined, "", failure];
    }
  }
}

function read<T>(response: Response, text: string): T {
  if (response.ok) {
    return JSON.parse(text) as T;
  }
  let code = "no_json";
  let message = text.slice(0, 200);
  try {
    ({ code, message } = JSON.parse(text).error);
  } catch {
    // A balancer's page is no JSON; its text says what it can.
  }
  throw new ServerError(response.status, code, message);
}
