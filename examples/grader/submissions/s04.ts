import { readFileSync } from "node:fs";

const numbers: number[] = readFileSync(0, "utf8").split(/\s+/).filter(Boolean).map(Number);
numbers.sort((a: number, b: number): number => a - b);
const low = numbers[(numbers.length - 1) >> 1];
const high = numbers[numbers.length >> 1];
console.log((low + high) / 2);
