import { describe, expect, it } from "vitest";
import { money, split } from "./split";

describe("split", () => {
  it("adds the tip and divides evenly", () => {
    expect(split(10_000, 20, 4)).toEqual([3000, 3000, 3000, 3000]);
  });

  it("loses no cent when it does not divide", () => {
    const shares = split(1_000, 15, 3);
    expect(shares).toEqual([384, 383, 383]);
    expect(shares.reduce((sum, share) => sum + share, 0)).toBe(1_150);
  });

  it.each([0, -1, 1.5, Number.NaN])("refuses %s guests", (guests) => {
    expect(() => split(1_000, 10, guests)).toThrow(RangeError);
  });
});

it("shows cents with two digits", () => {
  expect(money(5)).toBe("0.05");
  expect(money(120_000)).toBe("1200.00");
});
