import { expect, it } from "vitest";
import { isLeap } from "./leap";

it("knows ordinary years", () => {
  expect(isLeap(2023)).toBe(false);
  expect(isLeap(2024)).toBe(true);
});

it("knows centuries", () => {
  expect(isLeap(1900)).toBe(false);
  expect(isLeap(2000)).toBe(true);
});
