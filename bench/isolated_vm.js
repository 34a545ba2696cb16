// Answers each line on stdin with the milliseconds that a fresh isolate, a context and a small
// evaluation took in it: what `isolated-vm` users pay per run. Started by rows_warm.py.
const ivm = require("isolated-vm");

async function run() {
  const startedAt = process.hrtime.bigint();
  const isolate = new ivm.Isolate({ memoryLimit: 128 });
  const context = await isolate.createContext();
  const value = await context.eval("80 * (1 + 0.25)", { timeout: 1000 });
  isolate.dispose();
  if (value !== 100) throw new Error(`the run failed: ${value}`);
  return Number(process.hrtime.bigint() - startedAt) / 1e6;
}

(async () => {
  for await (const _ of process.stdin) process.stdout.write(`${await run()}\n`);
})();
