// Node writes to a pipe later when it is full, and process.exit loses what it has not written. With
// this a write waits instead, as the console and process.stdout of the other runtimes do.

export function blockOutput() {
  for (const name of ["stdout", "stderr"]) {
    const { get } = Object.getOwnPropertyDescriptor(process, name);
    let stream;
    function first() {
      if (stream === undefined) {
        stream = get.call(process);
        stream._handle?.setBlocking?.(true);
      }
      return stream;
    }
    Object.defineProperty(process, name, { get: first, configurable: true, enumerable: true });
  }
}
