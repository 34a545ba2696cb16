const all = [];
for (;;) all.push(new Uint8Array(32 << 20).fill(1));
