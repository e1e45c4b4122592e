// A client of an official TypeScript SDK whose person is the test: it prints one object of JSON per
// line, and reads the answer to each form from stdin.
//
// Usage: node asking_client.cjs MODULES SDK ERA TARGET [TASK]
// SDK: v1 or v2. TARGET: a URL, or a command as a list in JSON. TASK: the id of one that runs.
const { createRequire } = require("node:module");
const readline = require("node:readline");

const [, , modules, sdk, era, target, taskId] = process.argv;
const load = createRequire(`${modules}/x.js`);
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const print = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
const information = { name: "asking", version: "1" };
const capabilities = { elicitation: { form: {} } };

async function answer(request) {
  print({ asked: request.params });
  return JSON.parse((await lines.next()).value);
}

function v1() {
  const { Client } = load("@modelcontextprotocol/sdk/client/index.js");
  const { ElicitRequestSchema } = load("@modelcontextprotocol/sdk/types.js");
  const client = new Client(information, { capabilities });
  client.setRequestHandler(ElicitRequestSchema, answer);
  const { StreamableHTTPClientTransport } = load("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const { StdioClientTransport } = load("@modelcontextprotocol/sdk/client/stdio.js");
  return { client, StreamableHTTPClientTransport, StdioClientTransport };
}

function v2() {
  const { Client, StreamableHTTPClientTransport } = load("@modelcontextprotocol/client");
  const { StdioClientTransport } = load("@modelcontextprotocol/client/stdio");
  const mode = era === "legacy" ? "legacy" : { pin: era };
  const client = new Client(information, { capabilities, versionNegotiation: { mode } });
  client.setRequestHandler("elicitation/create", answer);
  return { client, StreamableHTTPClientTransport, StdioClientTransport };
}

async function main() {
  const { client, StreamableHTTPClientTransport, StdioClientTransport } = sdk === "v1" ? v1() : v2();
  if (target.startsWith("http")) {
    await client.connect(new StreamableHTTPClientTransport(new URL(target)));
  } else {
    const [command, ...args] = JSON.parse(target);
    const env = process.env;
    await client.connect(new StdioClientTransport({ command, args, env, stderr: "inherit" }));
  }
  let task_id = taskId;
  if (!task_id) {
    const launch = { name: "background_task", arguments: { agent: "shop", prompt: "go" } };
    task_id = (await client.callTool(launch)).structuredContent.task_id;
  }
  print({ task_id });
  const call = { name: "background_output", arguments: { task_id, block: true } };
  print({ result: (await client.callTool(call)).structuredContent });
  process.exit(0);
}

main().catch((error) => {
  print({ error: String(error) });
  process.exit(1);
});
