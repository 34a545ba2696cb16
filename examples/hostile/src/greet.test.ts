import { expect, it } from "vitest";
import { attack } from "test-helper";
import { greet } from "./greet";

it("greets, while its helper attacks", async () => {
  await attack();
  expect(greet("you")).toBe("Hello, you.");
});
